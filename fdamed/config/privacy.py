"""What a hospital insists on before anything leaves it: kinds, smallest numbers, noise (docs/privacy.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from fdamed.config.datasets import Strict
from fdamed.core.disclosure import vague
from fdamed.core.errors import FdamedError

Kind = Literal["weights", "update", "statistic", "features", "scalar", "count"]
IMAGES, STEPS = 100, 10
"""The floor where patients are behind the images."""
CELL = 11
"""Counts below this are not told."""


class Differential(Strict):
    """Differential privacy at the sources: DP-SGD, whose unit is the patient (docs/privacy.md)."""

    multiplier: Annotated[float, Field(gt=0)] = 1.0
    """Standard deviation of the noise on a step's sum of gradients, in units of `clip`."""
    clip: Annotated[float, Field(gt=0)] = 1.0
    """Longest gradient with which one patient counts in a step."""
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Default: each hospital's number of patients to the power of -1.1."""
    secure: bool = False
    """Noise and samples from the operating system's secure generator: private, and no run can be repeated bit by bit.
    Without it they follow from the seed: a run can be repeated, and whoever knows the seed can take the noise off."""


class Privacy(Strict):
    release: tuple[Kind, ...] = ("weights", "update", "statistic", "scalar", "count")
    """Kinds of knowledge that a hospital lets out."""
    smallest_batch: Annotated[int, Field(ge=1)] = 16
    """No mean over the features of fewer images leaves a hospital: one of a single image can be inverted exactly."""
    smallest_cell: Annotated[int, Field(ge=1)] = CELL
    """Counts below this are not shown in reports."""
    smallest_images: Annotated[int | None, Field(ge=1)] = None
    """Nothing that was computed on fewer images leaves a hospital. Default: 100; of public benchmark sets: 1."""
    smallest_steps: Annotated[int | None, Field(ge=1)] = None
    """No model or update of fewer local steps a round leaves a hospital. Default: 10; of public benchmark sets: 1."""
    differential: Differential | None = None
    """Noise on the sources' training, with the epsilon that it costs in the report; a run can have its own."""
    secure_aggregation: bool = False
    """The server must see nothing but sums over hospitals. fdamed does not mask: true is refused, with the reason."""


@dataclass(frozen=True)
class Floor:
    """The fewest images and local steps a round behind anything that leaves a hospital."""

    images: int = IMAGES
    steps: int = STEPS

    def refusal(self, client: str, images: int, steps: int | None = None) -> FdamedError | None:
        """What is wrong with so few images, or with so few steps where a model or an update is to leave; None: nothing.

        A small number of images is told in words, for the text reaches the server. Without any image there is nobody
        to protect: the answer is then what was asked.
        """
        if not images:
            return None
        if images < self.images:
            return FdamedError(
                f"{client} has {vague(images, CELL)} images; the minimum for sharing any result is {self.images} "
                "(privacy.smallest_images)",
                f"hospital {client}",
                f"Give {client} {self.images} images or more, or leave it out; of synthetic or public images, say so "
                "with a lower privacy.smallest_images.",
            )
        if steps is not None and steps < self.steps:
            return FdamedError(
                f"{client} takes {steps} local steps a round, and a model of fewer than {self.steps} does not leave "
                "(privacy.smallest_steps)",
                f"hospital {client}",
                f"Raise its `epochs` or lower its `batch` in `train` until there are {self.steps} steps, or lower "
                "privacy.smallest_steps where that is the hospital's decision.",
            )
        return None


USUAL, NO_FLOOR = Floor(), Floor(1, 1)


def local_steps(images: int, batch: int, epochs: int) -> int:
    """Steps of local training: a last batch of one image is left out, as `train.batches` does."""
    whole, rest = divmod(images, batch)
    return epochs * (whole + (rest > 1 or images == 1))
