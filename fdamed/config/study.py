"""The configuration of a study: all its sections, and its runs written out. `loader.py` reads and checks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fdamed.config.base import Name, Strict, not_removed
from fdamed.config.cross_checks import check_sections
from fdamed.config.datasets import Benchmark, Data, Phantom
from fdamed.config.error_texts import explain
from fdamed.config.model import Image, Model
from fdamed.config.privacy import DEFAULT_MINIMUM, NO_MINIMUM, Differential, Minimum, Privacy
from fdamed.config.runs import (
    MAIN,
    THEN,
    WARMUP,
    Run,
    Swept,
    Then,
    Value,
    Warmup,
    candidates,
    combinations,
    laid_over,
    tuned_to,
    varied,
)
from fdamed.config.split import Hospitals
from fdamed.config.train import Decay, Network, Recipe, Train

__all__ = ["Audit", "Config", "Decay", "Image", "Model", "Privacy", "Published", "Recipe", "Tracking", "Train"]


class Audit(Strict):
    """Privacy and fairness checks of the trained models (docs/reference/statistics.md, docs/explanation/privacy.md)."""

    attributes: bool = True
    """Attribute inference: how well sex, age, race and view can be read from the models' features."""
    membership: bool = True
    """Membership inference: how well each model reveals which patients it was trained on."""
    images: Annotated[int, Field(ge=100)] = 2000
    """Images of a client used for these attacks, at most."""


class Tracking(Strict):
    """MLflow tracking."""

    uri: str | None = Field(None, examples=["http://127.0.0.1:5000"])
    """MLflow tracking URI. Default: a SQLite file below `results`."""
    models: bool = True
    """Register, for each target, the model with the best validation score, as ONNX with a model card."""


class Published(Strict):
    """Published results of the paper that the study reproduces; the report shows them beside the study's own."""

    source: str
    """Paper and table."""
    values: dict[str, float | dict[str, float]]
    """Run -> accuracy in percent, or -> {target: accuracy}; a run of a sweep by its folder: fedgp-noise-0.4."""


def _policy(given: Any) -> Any:
    """`privacy: public` in full."""
    if isinstance(given, str) and given != "public":
        raise ValueError("should be a section with keys, or `public` for images without anybody to protect")
    return {"public": True} if given == "public" else given


class Config(Strict):
    """The configuration of a study."""

    study: Name
    """Name of the study: its files are in `results`/`study`."""
    results: str = "results"
    """Folder of all results."""
    data: Data
    phantom: Phantom | None = None
    split: Hospitals
    image: Image = Image()
    privacy: Annotated[Privacy, BeforeValidator(_policy, json_schema_input_type=Privacy | Literal["public"])] = (
        Privacy()
    )
    model: Model = Model()
    train: Train = Train()
    runs: Annotated[
        dict[Name, Run],
        Field(min_length=1),
        BeforeValidator(not_removed, json_schema_input_type=Annotated[dict[Name, Run | None], Field(min_length=1)]),
    ]
    """Name -> method and options: the rows of the study's tables. `name: null` removes a run of an earlier file."""
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0, 1, 2)
    """Every run is trained once with each seed."""
    advise: bool = False
    """Predict before training which method does best; the report compares the prediction with the results."""
    batch_runs: Annotated[int, Field(ge=1)] = 1
    """Runs that one training job trains in turn. Raise it for short runs, whose start-up time dominates: above 1, one
    job also prepares all data, one scores and audits the runs of a target, and one does all membership inference."""
    answers_mb: Annotated[int, Field(ge=0)] = 2000
    """Megabytes of disk for answers that clients remember, because other runs ask them the same; 0: none."""
    network: Network | None = None
    audit: Audit = Audit()
    tracking: Tracking = Tracking()
    published: Published | None = None

    @model_validator(mode="after")
    def _check(self) -> Config:
        check_sections(self)
        return self

    def train_of(self, run: Run) -> Train:
        """How this run trains: `train` with the run's own changes."""
        try:
            return Train.model_validate(laid_over(self.train.model_dump(), run.train or {}))
        except ValidationError as error:
            raise ValueError(f"`train` of a run: {explain(error, 'train.')}") from None

    def phases(self, run: Run) -> dict[str, Run]:
        """The phases of an expanded run in their order, each as a run: `warmup` and `then` where given."""
        same = {"labeled": run.labeled, "noise": run.noise, "differential": run.differential}
        out = {}
        if run.warmup:
            out[WARMUP] = _phase(run, run.warmup, same | {"auxiliary": run.auxiliary})
        out[MAIN] = run.model_copy(update={"warmup": None, "then": None})
        if run.then:
            out[THEN] = _phase(run, run.then, same)
        return out

    @property
    def public(self) -> bool:
        """Whether there is nobody to protect: the policy says so, or the images are a public benchmark set's."""
        return self.privacy.public or isinstance(self.data, Benchmark)

    @property
    def smallest_cell(self) -> int:
        """Smaller counts, and scores on groups that small, are shown nowhere outside the clients' folders."""
        return 1 if self.public else self.privacy.smallest_cell

    @property
    def minimum(self) -> Minimum:
        """The minimum numbers of images and steps that every client requires; for public images there is none."""
        usual = NO_MINIMUM if self.public else DEFAULT_MINIMUM
        images, steps = self.privacy.smallest_images, self.privacy.smallest_steps
        return Minimum(usual.images if images is None else images, usual.steps if steps is None else steps)

    @property
    def smallest_batch(self) -> int:
        """The minimum number of images behind a mean of features; for public images 1, unless the policy has one."""
        free = self.public and "smallest_batch" not in self.privacy.model_fields_set
        return 1 if free else self.privacy.smallest_batch

    def differential_of(self, run: Run) -> Differential | None:
        """Differential privacy at the sources of this run: the run's own, or the study's."""
        return self.privacy.differential if run.differential is None else run.differential

    def noise_of(self, run: Run) -> float:
        """Noise on the target's pixels: the run's own, or the study's."""
        return self.split.noise if run.noise is None else run.noise

    def expanded_runs(self) -> dict[str, Run]:
        """All runs by the name of their folder; a sweep becomes one run for each combination of its values."""
        out: dict[str, Run] = {}
        for name, run in self.runs.items():
            if not run.sweep:
                out[name] = run.model_copy(update={"method": run.method or name})
                continue
            plain = run.model_copy(update={"method": run.method or name, "sweep": None})
            for folder, chosen in combinations(name, self._effective(name, run)):
                out[folder] = varied(plain, chosen)
        return out

    def as_trained(self, name: str, tuned: Mapping[str, Any] | None) -> Run:
        """An expanded run as it was trained; `tuned`: what its run.json says about the choice of a tuned one."""
        run = self.expanded_runs()[name]
        return tuned_to(run, tuned["values"]) if run.tune and tuned else run

    def trained_runs(self) -> dict[str, Run]:
        """What is trained, by the name of its folder: the expanded runs, candidates in the place of a tuned one."""
        out: dict[str, Run] = {}
        for name, run in self.expanded_runs().items():
            found = candidates(name, run)
            out |= {folder: tuned_to(run, values) for folder, values in found.items()} or {name: run}
        return out

    def sweeps(self) -> dict[str, Swept]:
        """Folder of an expanded run -> its sweep and its values."""
        return {
            folder: Swept(name, chosen, {k: v for k, v in run.sweep.items() if k not in chosen})
            for name, run in self.runs.items()
            if run.sweep
            for folder, chosen in combinations(name, self._effective(name, run))
        }

    def target_labels(self, run: Run) -> bool:
        """Whether any phase of an expanded run trains on labels of the target."""
        from fdamed.config.loader import catalog

        return any(catalog()[phase.method]["target_labels"] for phase in self.phases(run).values())

    def few_labels(self, run: Run) -> bool:
        """Whether any phase of an expanded run trains on the target's few labels, so that `labeled` matters."""
        from fdamed.config.loader import catalog

        known = [catalog().get(phase.method) for phase in self.phases(run).values()]
        return any(m is None or (m["target_labels"] and not m["every_target_label"]) for m in known)

    def _effective(self, name: str, run: Run) -> dict[str, list[Value]]:
        """The options of a sweep that change this run: without `labeled`, where no phase uses the few labels."""
        labels = self.few_labels(run.model_copy(update={"method": run.method or name}))
        return {key: values for key, values in (run.sweep or {}).items() if key != "labeled" or labels}


def _phase(run: Run, phase: Warmup | Then, same: dict[str, Any]) -> Run:
    """A phase before or after a run's method, as a run of its own."""
    own = {"patience": None} | ({"rounds": phase.rounds} if phase.rounds else {})
    train = laid_over(laid_over(run.train or {}, phase.train or {}), own)
    return Run.model_validate({"method": phase.method, "train": train} | same | phase.options)
