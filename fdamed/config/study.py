"""The configuration: frozen and complete. How it is read, and refused where it is wrong: configfile.py."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from fdamed.config.datasets import Benchmark, Data, Name, Phantom, Strict
from fdamed.config.faults import SWEPT, Faults
from fdamed.config.privacy import NO_FLOOR, USUAL, Differential, Floor, Privacy
from fdamed.config.runs import Head, Run, Swept, combinations, laid_over
from fdamed.config.split import Hospitals, Partition
from fdamed.config.validation import Guard

# --- images ----------------------------------------------------------------------------------------------------------


class Image(Strict):
    size: Annotated[int, Field(ge=16, le=1024)] = 224
    equalize: bool = False
    """Histogram equalization, as the reference code of the healthcare paper does for MIDRC."""


# --- model and training ----------------------------------------------------------------------------------------------


class Model(Strict):
    backbone: Literal["resnet18", "resnet34", "resnet50", "cnn", "mlp"] = "resnet18"
    """cnn: two convolutions and three linear layers (the FedGP paper's); mlp: for feature vectors."""
    channels: Literal[1, 3] = 1
    """Channels of the images: 1 for radiographs and gray digits, 3 for color."""
    side: Annotated[int, Field(ge=16)] = 28
    """Side of the images that a cnn takes (its linear layers depend on it)."""
    inputs: Annotated[int, Field(ge=1)] = 5000
    """Length of the feature vectors that an mlp takes."""
    layers: Annotated[tuple[int, ...], Field(min_length=1)] = (1000, 500, 100)
    """Hidden layers of an mlp."""
    norm: Literal["batch", "group"] = "batch"
    """Normalization of a ResNet; `group` looks at one image at a time, as differential privacy needs it."""
    width: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Scales the block widths; 1 is the papers' network."""
    hidden: Annotated[int, Field(ge=1)] = 128
    classes: Annotated[int, Field(ge=2)] = 2
    heads: tuple[Head, ...] = ()
    """Auxiliary heads that the sources may train (see `auxiliary` of a run)."""
    races: tuple[str, ...] = ()
    """Classes of the race head, in this order."""
    weights: str | None = None
    """File with pretrained weights, torchvision format (.pth) or safetensors; without one, seeded He initialization."""

    @model_validator(mode="after")
    def _races_are_named(self) -> Model:
        if "race" in self.heads and len(self.races) < 2:
            raise ValueError("the race head needs `races`, at least two of them")
        return self


class Decay(Strict):
    """A learning rate that falls: times `factor` after every so many rounds."""

    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    every: Annotated[int, Field(ge=1)] = 50


class Recipe(Strict):
    """How one hospital trains in one round."""

    lr: Annotated[float, Field(gt=0)]
    batch: Annotated[int, Field(ge=2)] = 32
    """At least two: BatchNorm cannot train on one image."""
    epochs: Annotated[int, Field(ge=1)] = 1
    optimizer: Literal["adam", "sgd"] = "adam"
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    augment: bool = False
    decay: Decay | None = None
    """How the learning rate falls from round to round; without it, it stays."""

    def at(self, round: int) -> Recipe:
        """The recipe of round 1, 2, ..."""
        if self.decay is None:
            return self
        return self.model_copy(update={"lr": self.lr * self.decay.factor ** ((round - 1) // self.decay.every)})


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
    transport: Literal["in_process", "multiprocess"] = "in_process"
    evaluate_every: Annotated[int, Field(ge=1)] = 1
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the sources, drawn anew each round, that take part; at least one."""
    faults: Faults | None = None
    """A network that fails: absent hospitals, lost messages, late answers (docs/network.md)."""
    validation: Guard = Guard()
    """What an answer must be like to be aggregated (docs/guard.md)."""
    patience: Annotated[int | None, Field(ge=1)] = None
    """Stop after so many rounds without a new lowest training loss (docs/transfer_protocol.md); never in a `then`."""


class Audit(Strict):
    """What the target hospital looks into beyond the scores (docs/statistics.md)."""

    probe: bool = True
    """Whether sex, age, race and view are read from the models' features, and how well (the leak probe)."""
    images: Annotated[int, Field(ge=100)] = 2000
    """Images of a hospital that a probe looks at, at most: it takes one pass over them in every model."""
    membership: bool = True
    """Whether every hospital asks of each model which of its patients trained it (docs/privacy.md)."""


class Tracking(Strict):
    uri: str | None = None
    """MLflow tracking URI; default: a SQLite file below results/."""
    models: bool = True
    """Register for each target the model that validation labels choose, as ONNX with its card."""


class Published(Strict):
    """Figures of a paper that the study repeats, for the report to put beside ours."""

    source: str
    metric: Literal["acc", "auc"] = "acc"
    values: dict[str, float | dict[str, float]]
    """Run (a swept one by its folder, such as fedgp-noise-0.4) -> per cent, or -> {target: per cent}."""


class Config(Strict):
    study: Name
    results: str = "results"
    data: Data
    phantom: Phantom | None = None
    split: Hospitals
    image: Image = Image()
    privacy: Privacy = Privacy()
    model: Model = Model()
    train: Train = Train()
    runs: dict[Name, Run]
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0, 1, 2)
    advise: bool = False
    """Ask the theory before training which method promises most; the report says afterwards whether it was right."""
    batch_runs: Annotated[int, Field(ge=1)] = 1
    """Runs of one target and seed that a training job takes in turn: for short runs, whose start would cost most."""
    audit: Audit = Audit()
    tracking: Tracking = Tracking()
    published: Published | None = None

    @model_validator(mode="after")
    def _runs_fit(self) -> Config:
        if isinstance(self.data, Benchmark) != isinstance(self.split, Partition):
            raise ValueError(f"`split.by: {self.split.by}` does not go with `data.layout: {self.data.layout}`")
        if isinstance(self.data, Benchmark):
            stray = [d for d in getattr(self.split, "sets", ()) if d not in self.data.domains]
            if stray:
                raise ValueError(f"split names {', '.join(stray)}, which data.domains does not have")
        model, clinical = self.model, not isinstance(self.data, Benchmark)
        if model.backbone == "cnn" and model.side != self.image.size:
            raise ValueError(f"model.side is {model.side}, image.size {self.image.size}: a cnn needs them equal")
        if clinical and (model.backbone == "mlp" or model.channels != 1):
            raise ValueError("radiographs are gray images: model.channels is 1 and the backbone is no mlp")
        if model.weights and model.backbone in ("cnn", "mlp"):
            raise ValueError(f"model.weights are for ResNets; a {model.backbone} starts from seeded weights")
        if not self.runs:
            raise ValueError("`runs` is empty: name at least one method")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError("a seed is listed twice in `seeds`")
        for name, run in self.runs.items():
            for key, values in (run.sweep or {}).items():
                if key in ("method", "sweep", "auxiliary", "train", "then"):
                    raise ValueError(f"runs.{name}.sweep cannot go over `{key}`: write one run for each")
                if not values or len({str(v) for v in values}) != len(values):
                    raise ValueError(f"runs.{name}.sweep.{key} needs values, each of them once")
        stray_rows = [r for r in (self.published.values if self.published else ()) if r not in self.expanded_runs()]
        if stray_rows:
            raise ValueError(f"published.values names {', '.join(stray_rows)}, which is no run of the study")
        figures = self.published.values.values() if self.published else ()
        unknown = {t for v in figures if isinstance(v, dict) for t in v if t not in self.split.targets}
        if unknown:
            raise ValueError(f"published.values names {', '.join(sorted(unknown))}, which is no target of the study")
        for name, run in self.expanded_runs().items():
            fixed = [k for k in ("device", "transport", "threads") if k in (run.train or {})]
            if fixed:
                raise ValueError(f"runs.{name}.train cannot change {', '.join(fixed)}: they hold for the whole study")
            faults = self.train_of(run).faults
            misfit = faults.misfit(tuple(self.split.clients)) if faults else None
            if misfit:
                raise ValueError(f"train.faults of {name} {misfit}")
            for phase in self.phases(run):
                length = self.train_of(phase).rounds
                if float(phase.options.get("warmup", 0)) >= length:
                    raise ValueError(f"runs.{name}: `warmup` leaves none of the {length} rounds to {phase.method}")
            if run.auxiliary:
                absent = [h for h in run.auxiliary.heads if h not in self.model.heads]
                if absent:
                    raise ValueError(f"runs.{name}.auxiliary names {', '.join(absent)}: not in model.heads")
            if run.labeled and isinstance(self.split.labeled, int) and run.labeled > self.split.labeled:
                raise ValueError(f"runs.{name}.labeled is {run.labeled}, split.labeled only {self.split.labeled}")
        return self

    def train_of(self, run: Run) -> Train:
        """How this run trains: `train` with the run's own differences."""
        merged = laid_over(self.train.model_dump(), run.train or {})
        try:
            return Train.model_validate(merged)
        except ValidationError as fault:
            first = fault.errors(include_url=False)[0]
            raise ValueError(f"train.{'.'.join(map(str, first['loc']))} of a run: {first['msg']}") from None

    def phases(self, run: Run) -> tuple[Run, ...]:
        """An expanded run phase by phase: itself without its `then`, and that as a run."""
        first = run.model_copy(update={"then": None})
        if run.then is None:
            return (first,)
        own = {"patience": None} | ({"rounds": run.then.rounds} if run.then.rounds else {})
        differences = laid_over(laid_over(run.train or {}, run.then.train or {}), own)
        same = {"labeled": run.labeled, "noise": run.noise, "differential": run.differential}
        then = Run(method=run.then.method, train=differences, **same)
        return first, Run.model_validate(then.model_dump() | run.then.options)

    @property
    def floor(self) -> Floor:
        """What every hospital of the study insists on; public benchmark sets have no patients to protect."""
        usual = NO_FLOOR if isinstance(self.data, Benchmark) else USUAL
        images, steps = self.privacy.smallest_images, self.privacy.smallest_steps
        return Floor(usual.images if images is None else images, usual.steps if steps is None else steps)

    def differential_of(self, run: Run) -> Differential | None:
        """The noise at the sources of this run: its own, or the study's."""
        return self.privacy.differential if run.differential is None else run.differential

    def noise_of(self, run: Run) -> float:
        return self.split.noise if run.noise is None else run.noise

    def expanded_runs(self) -> dict[str, Run]:
        """The runs with every sweep written out, by the name of their folder."""
        out: dict[str, Run] = {}
        for name, run in self.runs.items():
            if not run.sweep:
                out[name] = run.model_copy(update={"method": run.method or name})
                continue
            for folder, chosen in combinations(name, run.sweep):
                fields = run.model_dump(exclude={"sweep"}) | chosen | {"method": run.method or name}
                if "alpha" in chosen and run.auxiliary:
                    fields["auxiliary"] = run.auxiliary.model_dump() | {"alpha": fields.pop("alpha")}
                faults = {k: fields.pop(k) for k in SWEPT if k in chosen}
                if faults:
                    train = run.train or {}
                    fields["train"] = train | {"faults": (train.get("faults") or {}) | faults}
                out[folder] = Run.model_validate(fields)
        return out

    def sweeps(self) -> dict[str, Swept]:
        """Folder of an expanded run -> its place in its sweep."""
        return {
            folder: Swept(name, chosen)
            for name, run in self.runs.items()
            for folder, chosen in combinations(name, run.sweep or {})
            if run.sweep
        }
