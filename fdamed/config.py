"""The configuration: frozen, complete, and refused with one clear line where it is wrong.

`config/schema.json` is generated from here (`fdamed schema`); a test fails if it is stale.
What a method's own options are is known to `methods/`; `methods/catalogue.json`, generated from them,
lets this file check a run's options without importing torch.
"""

from __future__ import annotations

import difflib
import itertools
import json
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from fdamed.errors import FdamedError

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
    classes: Annotated[int, Field(ge=2)] = 2
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

    lr: Annotated[float, Field(ge=0)]
    batch: Annotated[int, Field(ge=1)] = 32
    epochs: Annotated[int, Field(ge=1)] = 1
    optimiser: Literal["adam", "sgd"] = "adam"
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    augment: bool = False


class Train(Strict):
    rounds: Annotated[int, Field(ge=1)] = 50
    source: Recipe = Recipe(lr=1e-3, batch=32)
    target: Recipe = Recipe(lr=2e-4, batch=16)
    checkpoint_every: Annotated[int, Field(ge=1)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
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


# --- reading ---------------------------------------------------------------------------------------------------------

CATALOGUE = Path(__file__).parent / "methods" / "catalogue.json"


@cache
def catalogue() -> dict[str, dict[str, Any]]:
    """Method -> {title, paper, target_labels, options: {name: {type, default}}, wire}; see `fdamed schema`."""
    content: dict[str, dict[str, Any]] = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    return content


def load(*paths: Path | str) -> Config:
    """Read configuration files, later ones over earlier ones, and check everything."""
    raw: dict[str, Any] = {}
    for path in paths:
        raw = _merge(raw, _read(Path(path)))
    return parse(raw, where=", ".join(str(p) for p in paths))


def parse(raw: dict[str, Any], where: str) -> Config:
    """Check a configuration that is already in memory; `where` names it in messages."""
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise FdamedError(_explain(error, raw), where, "Mend the key and start again; nothing was started.") from None
    for name, run in config.expanded_runs().items():
        _check_method(name, run, where)
    return config


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FdamedError("there is no such configuration file", str(path), "Check the path; config/ has examples.")
    try:
        content = (
            json.loads(path.read_text(encoding="utf-8"))
            if path.suffix == ".json"
            else yaml.safe_load(path.read_text(encoding="utf-8"))
        )
    except (yaml.YAMLError, json.JSONDecodeError, UnicodeDecodeError) as error:
        told = " ".join(str(error).split())
        raise FdamedError(f"not readable as YAML: {told}", str(path), "Mend the file.") from None
    if not isinstance(content, dict):
        raise FdamedError("a configuration is a mapping of keys", str(path), "Start from a file in config/.")
    return content


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = _merge(out[key], value) if both else value
    return out


def _explain(error: ValidationError, raw: dict[str, Any]) -> str:
    """One line for each fault: key, what is wrong, what is allowed."""
    lines = []
    for fault in error.errors(include_url=False):
        path = [str(p) for p in fault["loc"] if p not in {"chexpert", "mimic", "midrc", "nih", "table"}]
        key = ".".join(path) or "configuration"
        if fault["type"] == "extra_forbidden":
            allowed = _allowed(tuple(fault["loc"][:-1]))
            lines.append(f"unknown key `{key}`{_nearest(path[-1], allowed)}; allowed here: {', '.join(allowed)}")
        elif fault["type"] == "missing":
            lines.append(f"missing key `{key}`")
        else:
            shown = f" (given: {fault['input']!r})" if not isinstance(fault["input"], dict) else ""
            lines.append(f"`{key}`: {fault['msg'].removeprefix('Value error, ')}{shown}")
    return "; ".join(lines)


def _allowed(location: tuple[int | str, ...]) -> list[str]:
    """Keys that the model at `location` knows."""
    variants = {"chexpert": Chexpert, "mimic": Mimic, "midrc": Midrc, "nih": Nih, "table": Table}
    model: Any = Config
    for step in location:
        if step in variants:
            model = variants[str(step)]
            continue
        fields = getattr(model, "model_fields", {})
        if step in fields:
            model = _model_in(fields[step].annotation)
    return sorted(getattr(model, "model_fields", {}))


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_in(argument)
        if found is not None:
            return found
    return None


def _nearest(word: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(word, allowed, n=1)
    return f" (did you mean `{near[0]}`?)" if near else ""


def _check_method(name: str, run: Run, where: str) -> None:
    known = catalogue()
    fix = "Mend the key and start again; nothing was started. `fdamed methods` lists methods and options."
    if run.method not in known:
        near = _nearest(run.method, sorted(known))
        raise FdamedError(
            f"`runs.{name}`: unknown method `{run.method}`{near}; allowed: {', '.join(sorted(known))}", where, fix
        )
    options = known[run.method]["options"]
    for key, value in run.options.items():
        if key not in options:
            raise FdamedError(
                f"unknown key `runs.{name}.{key}`{_nearest(key, sorted(options))}; "
                f"{run.method} knows: {', '.join(sorted([*options, *Run.model_fields]))}",
                where,
                fix,
            )
        fault = _misfit(value, options[key])
        if fault:
            raise FdamedError(f"`runs.{name}.{key}`: {fault} (given: {value!r})", where, fix)


def _misfit(value: Any, option: dict[str, Any]) -> str | None:
    """What is wrong with an option's value, by its entry in the catalogue; None: nothing."""
    kind = option["type"]
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "bool" and not isinstance(value, bool):
        return "should be true or false"
    if kind == "int" and (not numeric or int(value) != value):
        return "should be a whole number"
    if kind == "float" and not numeric:
        return "should be a number"
    if kind == "choice" and value not in option["choices"]:
        return f"should be one of {', '.join(map(str, option['choices']))}"
    low, high = option.get("low"), option.get("high")
    if numeric and ((low is not None and value < low) or (high is not None and value > high)):
        return f"should lie between {low if low is not None else '-inf'} and {high if high is not None else 'inf'}"
    return None


def schema() -> dict[str, Any]:
    """The JSON schema of a configuration file, with each method's options."""
    out: dict[str, Any] = Config.model_json_schema()
    out["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    out["title"] = "fdamed configuration"
    run = out["$defs"]["Run"]
    known = catalogue()
    run["properties"]["method"]["enum"] = ["", *sorted(known)]
    for entry in known.values():
        for key, option in entry["options"].items():
            run["properties"].setdefault(key, {"description": option.get("help", "")})
    run["additionalProperties"] = False
    return out
