"""The `train` section: how clients train, for how many rounds, over which transport, and its two sections: simulated
faults, and the validation of updates. The `network` section: where a study over a network has its server."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, field_validator, model_validator

from fdamed.config.base import Strict

KINDS = ("weights", "individual", "update", "statistic", "features", "scalar", "count")
"""Kinds of values in messages."""
EVERY = "every"
ROLES = ("target", "sources")
SWEPT = ("absent", "lost", "deadline")
"""Keys that `runs.*.sweep` may vary like options of the method."""
Probability = Annotated[float, Field(ge=0, le=1)]
Host = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?$")]


class Ways(Strict):
    """Probability that a message is lost, by direction."""

    down: Probability = 0.0
    """From the server to a hospital, which then does nothing."""
    up: Probability = 0.0
    """From a hospital, which has done its work."""


def _by_content(given: Any) -> Any:
    """A number holds for every message; a number for a kind holds for both directions."""
    table = given if isinstance(given, dict) else {EVERY: given}
    return {k: v if isinstance(v, dict | Ways) else {"down": v, "up": v} for k, v in table.items()}


Lost = Annotated[
    dict[str, Ways], BeforeValidator(_by_content, json_schema_input_type=Probability | dict[str, Probability | Ways])
]


class Minutes(Strict):
    """How long an answer takes: log-normal, drawn anew for each question."""

    median: Annotated[float, Field(gt=0)]
    """Median of an answer's time in minutes."""
    spread: Annotated[float, Field(ge=0)] = 0.5
    """Standard deviation of the logarithm; 0: always the median."""
    slower: dict[str, Annotated[float, Field(gt=0)]] = Field({}, examples=[{"target": 2}])
    """Hospital, `target` or `sources` -> factor on its times."""


class Faults(Strict):
    """Absences, losses and delays, drawn from the seed: the same for every method."""

    absent: Probability = 0.0
    """Probability that a hospital is absent for a whole round."""
    away: dict[Annotated[int, Field(ge=1)], tuple[str, ...]] = Field({}, examples=[{3: ["target"]}])
    """Round -> who else is absent: hospitals, `target` or `sources`."""
    lost: Lost = Field({})
    """Probability that a message is lost: a number, or by kind or step, such as {update: 0.1, weights: {up: 0.2}}."""
    minutes: Minutes | None = None
    """How long an answer takes; answers after the deadline are not used."""
    deadline: Annotated[float, Field(gt=0)] | None = None
    """Minutes that the server waits for an answer."""
    spare: tuple[str, ...] = Field((), examples=[["target"]])
    """Who has no random faults: hospitals, `target` or `sources`."""

    @field_validator("lost")
    @classmethod
    def _contents_are_known(cls, lost: dict[str, Ways]) -> dict[str, Ways]:
        if not lost.keys() <= {EVERY, *KINDS}:
            from fdamed.config.loader import catalog

            steps = {line["step"] for method in catalog().values() for line in method["wire"]}
            allowed = [EVERY, *KINDS, *sorted(steps)]
            unknown = [key for key in lost if key not in allowed]
            if unknown:
                raise ValueError(f"no message has {', '.join(unknown)}; allowed: {', '.join(allowed)}")
        return lost

    @model_validator(mode="after")
    def _time_and_deadline(self) -> Faults:
        if (self.minutes is None) != (self.deadline is None):
            raise ValueError("`minutes` and `deadline` go together: one without the other does nothing")
        return self

    def misfit(self, clients: tuple[str, ...]) -> str | None:
        """What does not fit these hospitals; None: nothing."""
        named = {p for group in self.away.values() for p in group} | set(self.spare)
        named |= set(self.minutes.slower) if self.minutes else set()
        stray = sorted(named - {*clients, *ROLES})
        if stray:
            return f"names {', '.join(stray)}; allowed: {', '.join([*clients, *ROLES])}"
        return None


class Norms(Strict):
    """Robust aggregation by norms, in multiples of the median norm of the other updates."""

    reject_above: Annotated[float, Field(gt=1)] = 100.0
    """Exclude an update with a larger norm from its round."""
    clip_above: Annotated[float, Field(gt=1)] | None = 10.0
    """Clip an update with a larger norm to this; null: no clipping."""

    @model_validator(mode="after")
    def _in_order(self) -> Norms:
        if self.clip_above is not None and self.clip_above > self.reject_above:
            raise ValueError(f"`clip_above` ({self.clip_above}) must not exceed `reject_above` ({self.reject_above})")
        return self


class Directions(Strict):
    """Robust aggregation by directions: the cosine similarity of an update with the others."""

    reject_below: Annotated[float, Field(ge=-1, le=0)] = -0.2
    """Exclude an update from its round below this cosine similarity, as a whole or in one layer."""
    label_rate_gap: Annotated[float, Field(ge=0, le=1)] | None = 0.1
    """Compare only clients whose label rates differ by at most this; null: compare all."""


class Validation(Strict):
    """Checks of the sources' updates. Shapes, finite values, counts, variances and replays are always checked."""

    norms: Norms | None = None
    """Reject and clip updates by their norm; {} takes the defaults, null switches it off."""
    directions: Directions | None = None
    """Exclude updates that point against the others; {} takes the defaults, null switches it off."""
    strikes: Annotated[int, Field(ge=1)] | None = 3
    """Rounds with a rejected update after which a source is quarantined for the rest of the run; null: never."""


class Decay(Strict):
    """A step schedule: the learning rate is multiplied by `factor` after every `every` rounds."""

    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """What the learning rate is multiplied by."""
    every: Annotated[int, Field(ge=1)] = 50
    """Rounds between two such steps."""


class Recipe(Strict):
    """How one client trains in one round."""

    lr: Annotated[float, Field(gt=0)]
    """Learning rate."""
    batch: Annotated[int, Field(ge=2)] = 32
    """Batch size; at least 2, because BatchNorm cannot train on one image."""
    epochs: Annotated[int, Field(ge=1)] = 1
    """Local epochs in a round."""
    steps: Annotated[int, Field(ge=1)] | None = None
    """Local steps in a round at most, drawn anew from all images. Default: whole epochs. Few steps keep methods that
    play a game between clients, such as f-DANN, close to their centralized form (docs/results/unsupervised.md)."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Optimizer of the local steps."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay of the optimizer, as in PyTorch."""
    augment: bool = False
    """Shift images by a few pixels and vary their contrast."""
    decay: Decay | None = None
    """Learning rate schedule over the rounds. Default: constant."""

    def images_seen(self, images: int) -> int:
        """Images that a client with so many trains on in a round, repeated ones counted."""
        every = self.epochs * images
        return every if self.steps is None else min(every, self.steps * self.batch)

    def at(self, round: int) -> Recipe:
        """The recipe with the learning rate of round 1, 2, ..."""
        if self.decay is None:
            return self
        return self.model_copy(update={"lr": self.lr * self.decay.factor ** ((round - 1) // self.decay.every)})


class Train(Strict):
    """How the federation trains; a run may differ in its own `train`."""

    rounds: Annotated[int, Field(ge=1)] = 50
    """Communication rounds."""
    source: Recipe = Recipe(lr=1e-3, batch=32)
    """How the sources train."""
    target: Recipe = Recipe(lr=2e-4, batch=16)
    """How the target trains."""
    checkpoint_every: Annotated[int, Field(ge=1)] = 1
    """Rounds between two checkpoints."""
    threads: Annotated[int, Field(ge=1)] = 1
    """CPU threads of a training job. The bits of a result depend on it."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:[0-9]+)?)$")] = Field("auto", examples=["cuda:1"])
    """auto: a GPU if one is here, else the CPU; `cuda`: a GPU that is free; `cuda:1`: this one; `mps`: Apple's."""
    jobs_per_gpu: Annotated[int, Field(ge=1)] = 1
    """Training jobs that may share a GPU at a time: small networks leave most of one idle."""
    precision: Literal["float32", "tf32", "bfloat16", "float16"] = "float32"
    """Precision of forward and backward pass; tf32: float32 with rounded products on a GPU; float16: scaled losses."""
    transport: Literal["in_process", "multiprocess", "network"] = "in_process"
    """multiprocess: every client runs in a process of its own; network: at its hospital (`fdamed lead`)."""
    evaluate_every: Annotated[int, Field(ge=1)] = 1
    """Rounds between two evaluations at the target."""
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the sources that take part in a round, sampled anew each round; at least one source."""
    quorum: Annotated[int, Field(ge=0)] = 1
    """With fewer sources than this a round is lost and changes nothing; 0: methods continue without sources."""
    faults: Faults | None = None
    """Simulated faults: absent clients, lost messages, late answers (docs/how_to/simulate_faults.md)."""
    validation: Validation = Validation()
    """Checks of the clients' updates before they are aggregated (docs/explanation/validation.md)."""
    patience: Annotated[int | None, Field(ge=1)] = None
    """Early stopping: rounds without a new lowest training loss. Does not hold in `then`."""

    def participants(self, sources: int) -> int:
        """How many of these sources take part in a round."""
        return max(1, math.floor(self.participation * sources + 0.5))


class Network(Strict):
    """A study across hospitals (docs/how_to/run_across_hospitals.md)."""

    host: Host = Field(examples=["fl.example.org"])
    """Name of the server as the hospitals reach it; its certificate has this name."""
    port: Annotated[int, Field(ge=1024, le=65535)] = 8002
    """The one port of the server that hospitals connect to."""
    answer_minutes: Annotated[float, Field(gt=0)] = 60.0
    """Minutes that the server waits for the answer of a hospital; without one it is left out of the step."""
    wait_minutes: Annotated[float, Field(gt=0)] = 60.0
    """Minutes that the lead waits until every hospital is there."""
    kits: str = "kits"
    """The lead's own folder of keys: `fdamed invite` makes it, `fdamed lead` uses it."""
