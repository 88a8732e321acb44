"""The configuration: frozen and complete. How it is read, and refused where it is wrong: configfile.py."""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
"""Names become folders and wildcards."""
Share = Annotated[float, Field(ge=0, lt=1)]
Kind = Literal["weights", "update", "statistic", "features", "scalar", "count"]
Head = Literal["sex", "age", "view", "race"]


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


# --- data ------------------------------------------------------------------------------------------------------------


class DataSet(Strict):
    """What all data sets share."""

    root: str
    """Folder of the raw data, exactly as downloaded."""
    salt: str | None = None
    """Secret for the patient pseudonyms; without one a random salt is made once and kept in parties/salt."""
    reject_share: Share = 0.05
    """Stop when more than this share of the rows or files is refused."""


class Chexpert(DataSet):
    layout: Literal["chexpert"]
    tables: tuple[str, ...] = ("train.csv", "valid.csv")
    """Tables below the release folder; those that are absent are passed over, but not all of them may be."""
    demographics: str | None = None
    """Path of the demographics table (xlsx or csv) with PATIENT and PRIMARY_RACE."""


class Mimic(DataSet):
    layout: Literal["mimic"]
    labels: Literal["chexpert", "negbio"] = "chexpert"
    images: Literal["auto", "jpg", "dcm"] = "auto"
    mimic_iv: str | None = None
    """Folder of MIMIC-IV (patients.csv.gz and admissions.csv.gz below it, hosp/ or core/); default: the data root."""
    races: dict[str, tuple[str, ...]] = {}
    """Race -> the values of admissions.csv that mean it; empty: the table in fdamed/data/mimic.py."""
    contradiction: Literal["drop", "majority", "first"] = "drop"
    """What becomes of the race of a patient whose admissions name several of the mapped races."""


class Midrc(DataSet):
    layout: Literal["midrc"]
    states: dict[str, tuple[str, ...]] = {}
    """Site -> ranges of three-digit zip codes such as "600-629"; empty: the table in fdamed/data/midrc.py."""
    test_window: tuple[int, int] | None = None
    """Count a case as positive only if a positive test lies within these days of the study, e.g. [-14, 14]."""


class Nih(DataSet):
    layout: Literal["nih"]


class Table(DataSet):
    layout: Literal["table"]
    table: str
    """CSV or TSV file, below the root or absolute."""
    columns: dict[str, str]
    """Column of the row contract -> column of the table; `image` and `patient` are needed."""
    labels: dict[str, str]
    """Name of a label -> column of the table."""
    values: dict[str, dict[str, str | float | None]] = {}
    """Column of the row contract or label -> {value in the table: value in the contract}."""


class Shift(Strict):
    """How far a phantom hospital lies from the others; every knob is 0 for 'as the reference scanner'."""

    gamma: float = 0.0
    exposure: float = 0.0
    noise: Annotated[float, Field(ge=0)] = 0.0
    blur: Annotated[float, Field(ge=0)] = 0.0
    position: Annotated[float, Field(ge=0)] = 0.0
    prevalence: Annotated[float, Field(gt=0, lt=1)] = 0.5
    sex: Annotated[float, Field(ge=-1, le=1)] = 0.0
    """Correlation of the finding with male sex."""
    age: Annotated[float, Field(ge=-1, le=1)] = 0.0
    """Correlation of the finding with old age."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Relative number of patients."""


class Phantom(Strict):
    """Synthetic chest radiographs, written in the layout of `data` before anything else runs."""

    patients: Annotated[int, Field(ge=10)] = 600
    size: Annotated[int, Field(ge=32, le=4096)] = 320
    seed: int = 0
    subtlety: Annotated[float, Field(ge=0, le=1)] = 0.5
    """0: findings shout; 1: findings whisper."""
    domains: dict[str, Shift] = {}
    """Shift of each condition (chexpert), race (mimic) or state (midrc); empty: the built-in ones."""


# --- cohort ----------------------------------------------------------------------------------------------------------


class Cut(Strict):
    """How the index becomes hospitals."""

    by: str
    """`condition`, or a column of the row contract such as race, site, view, projection, scanner."""
    parties: dict[Name, str]
    """Hospital -> the condition or the column's value it gets; with `by: expression`, an expression such as
    "race == 'Asian' and age >= 40"."""
    target: str
    """Which hospital is adapted to; `each`: every one in turn."""
    label: str | None = None
    """The label to predict; with `by: condition` it is each hospital's own condition."""
    positive_is: Literal[1, 0] = 1
    """0 turns the label round: with label `No Finding`, 0 makes `finding` the positive class."""
    negatives: Literal["zero", "blank", "no_finding"] = "zero"
    """Which rows are negatives: label 0; label blank (the published reference code); No Finding = 1."""
    uncertain: Literal["ones", "zeros", "ignore"] = "ignore"
    """What label -1 counts as."""
    uncertain_by_label: dict[str, Literal["ones", "zeros", "ignore"]] = {}
    where: str | None = None
    """Keep only the rows for which this expression holds, e.g. "view == 'frontal'"."""
    per_class: Annotated[int, Field(ge=1)] | Literal["all"] = "all"
    """Images a class and hospital, drawn by patient; `all` keeps everything (balanced or not, see `balanced`)."""
    balanced: bool = True
    """With `per_class: all`: cut the larger class down to the smaller one."""
    labelled: Annotated[int, Field(ge=2)] = 100
    """Labelled images that a hospital has when it is the target."""
    val: Share = 0.1
    test: Share = 0.2
    rule: Literal["disjoint", "reference"] = "disjoint"
    """disjoint: a patient is in one hospital and one split; reference: the published rule, which leaks and says so."""
    shares: dict[Name, float] = {}
    """With patients who fit several hospitals: the relative chance of each; empty: equal."""
    seed: int = 0

    @model_validator(mode="after")
    def _fits(self) -> Cut:
        if self.target != "each" and self.target not in self.parties:
            raise ValueError(f"target {self.target!r} is not one of the parties: {', '.join(self.parties)}, each")
        if len(self.parties) < 2:
            raise ValueError("at least two parties are needed: one source and the target")
        if self.by != "condition" and self.label is None:
            raise ValueError("with a cut by anything but condition, `label` must say what is to be predicted")
        stray = [p for p in self.shares if p not in self.parties]
        if stray:
            raise ValueError(f"shares names {', '.join(stray)}, which is not a party")
        if self.val + self.test >= 0.9:
            raise ValueError("val + test leave nothing to train on")
        return self

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(self.parties) if self.target == "each" else (self.target,)


class Image(Strict):
    size: Annotated[int, Field(ge=16, le=1024)] = 224
    equalise: bool = False
    """Histogram equalisation, as the reference code of the healthcare paper does for MIDRC."""


class Privacy(Strict):
    release: tuple[Kind, ...] = ("weights", "update", "statistic", "scalar", "count")
    """Kinds of knowledge that a hospital lets out."""
    smallest_cell: Annotated[int, Field(ge=1)] = 11
    """Counts below this are not shown in reports."""


# --- model and training ----------------------------------------------------------------------------------------------


class Model(Strict):
    backbone: Literal["resnet18", "resnet34", "resnet50"] = "resnet18"
    width: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Scales the block widths; 1 is the papers' network."""
    hidden: Annotated[int, Field(ge=1)] = 128
    classes: Literal[2] = 2
    heads: tuple[Head, ...] = ()
    """Auxiliary heads that the sources may train (see `auxiliary` of a run)."""
    races: tuple[str, ...] = ()
    """Classes of the race head, in this order."""
    weights: str | None = None
    """File with pretrained weights, torchvision format (.pth) or safetensors; without one, seeded He initialisation."""

    @model_validator(mode="after")
    def _races_are_named(self) -> Model:
        if "race" in self.heads and len(self.races) < 2:
            raise ValueError("the race head needs `races`, at least two of them")
        return self


class Recipe(Strict):
    """How one hospital trains in one round."""

    lr: Annotated[float, Field(gt=0)]
    batch: Annotated[int, Field(ge=2)] = 32
    """At least two: BatchNorm cannot train on one image."""
    epochs: Annotated[int, Field(ge=1)] = 1
    optimiser: Literal["adam", "sgd"] = "adam"
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    augment: bool = False


class Train(Strict):
    rounds: Annotated[int, Field(ge=1)] = 50
    source: Recipe = Recipe(lr=1e-3, batch=32)
    target: Recipe = Recipe(lr=2e-4, batch=16)
    checkpoint_every: Annotated[int, Field(ge=1)] = 1
    threads: Annotated[int, Field(ge=1)] = 1
    """Threads of a training job on the CPU; part of the result's bits."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`cuda` also makes Snakemake count the GPU: one training job on each."""
    precision: Literal["float32", "bfloat16"] = "float32"
    network: Literal["in_process", "processes"] = "in_process"
    evaluate_every: Annotated[int, Field(ge=1)] = 1


class Auxiliary(Strict):
    """AuxInfo of the healthcare paper: L_main + alpha * sum of the auxiliary losses, at the sources only."""

    heads: tuple[Head, ...]
    alpha: Annotated[float, Field(ge=0)] = 1.0


class Run(BaseModel):
    """One row of the study: a method, its options, and what is changed for it. Other keys are the method's options."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    method: str = ""
    """Name of a registered method; default: the name of the run."""
    auxiliary: Auxiliary | None = None
    labelled: Annotated[int, Field(ge=1)] | None = None
    """Use only this many of the target's labelled images."""
    sweep: dict[str, list[float | int | str | bool]] | None = None
    """Option -> values: one run for each combination."""

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class Tracking(Strict):
    uri: str | None = None
    """MLflow tracking URI; default: a SQLite file below results/."""


class Config(Strict):
    cohort: Name
    results: str = "results"
    data: Annotated[Chexpert | Mimic | Midrc | Nih | Table, Field(discriminator="layout")]
    phantom: Phantom | None = None
    cut: Cut
    image: Image = Image()
    privacy: Privacy = Privacy()
    model: Model = Model()
    train: Train = Train()
    runs: dict[Name, Run]
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0, 1, 2)
    tracking: Tracking = Tracking()

    @model_validator(mode="after")
    def _runs_fit(self) -> Config:
        if not self.runs:
            raise ValueError("`runs` is empty: name at least one method")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError("a seed is listed twice")
        for name, run in self.runs.items():
            for key, values in (run.sweep or {}).items():
                if key in ("method", "sweep", "auxiliary"):
                    raise ValueError(f"runs.{name}.sweep cannot go over `{key}`: write one run for each")
                if not values or len({str(v) for v in values}) != len(values):
                    raise ValueError(f"runs.{name}.sweep.{key} needs values, each of them once")
        for name, run in self.expanded_runs().items():
            if float(run.options.get("warmup", 0)) >= self.train.rounds:
                raise ValueError(f"runs.{name}.warmup leaves none of the {self.train.rounds} rounds to the method")
            if run.auxiliary:
                absent = [h for h in run.auxiliary.heads if h not in self.model.heads]
                if absent:
                    raise ValueError(f"runs.{name}.auxiliary names {', '.join(absent)}: not in model.heads")
            if run.labelled and run.labelled > self.cut.labelled:
                raise ValueError(f"runs.{name}.labelled is {run.labelled}, cut.labelled only {self.cut.labelled}")
        return self

    def expanded_runs(self) -> dict[str, Run]:
        """The runs with every sweep written out, by the name of their folder."""
        out: dict[str, Run] = {}
        for name, run in self.runs.items():
            if not run.sweep:
                out[name] = run.model_copy(update={"method": run.method or name})
                continue
            for values in itertools.product(*run.sweep.values()):
                chosen = dict(zip(run.sweep, values, strict=True))
                suffix = "".join(f"-{k}-{v}" for k, v in chosen.items())
                fields = run.model_dump(exclude={"sweep"}) | chosen | {"method": run.method or name}
                out[name + suffix] = Run.model_validate(fields)
        return out
