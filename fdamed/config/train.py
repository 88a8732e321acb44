"""The `train` section: how clients train, for how many rounds, and over which transport."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fdamed.config.base import Strict
from fdamed.config.faults import Faults
from fdamed.config.validation import Validation


class Decay(Strict):
    """A step schedule: the learning rate is multiplied by `factor` after every `every` rounds."""

    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    every: Annotated[int, Field(ge=1)] = 50


class Recipe(Strict):
    """How one client trains in one round."""

    lr: Annotated[float, Field(gt=0)]
    """Learning rate."""
    batch: Annotated[int, Field(ge=2)] = 32
    """Batch size; at least 2, because BatchNorm cannot train on one image."""
    epochs: Annotated[int, Field(ge=1)] = 1
    """Local epochs in a round."""
    optimizer: Literal["adam", "sgd"] = "adam"
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    augment: bool = False
    """Shift images by a few pixels and vary their contrast."""
    decay: Decay | None = None
    """Learning rate schedule over the rounds. Default: constant."""

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
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`cuda` also makes Snakemake reserve a GPU for each training job."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the forward and backward pass."""
    transport: Literal["in_process", "multiprocess"] = "in_process"
    """multiprocess: every client runs in a process of its own."""
    evaluate_every: Annotated[int, Field(ge=1)] = 1
    """Rounds between two evaluations at the target."""
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the sources that take part in a round, sampled anew each round; at least one source."""
    faults: Faults | None = None
    """Simulated faults: absent clients, lost messages, late answers (docs/how_to/simulate_faults.md)."""
    validation: Validation = Validation()
    """Checks of the clients' updates before they are aggregated (docs/explanation/validation.md)."""
    patience: Annotated[int | None, Field(ge=1)] = None
    """Early stopping: rounds without a new lowest training loss. Does not hold in `then`."""
