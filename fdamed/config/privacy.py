"""The `privacy` section: which messages a client may send, the minimum data behind them, differential privacy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fdamed.config.base import Strict
from fdamed.core.disclosure import vague
from fdamed.core.errors import FdamedError

if TYPE_CHECKING:
    from fdamed.config.train import Recipe

Kind = Literal["weights", "update", "statistic", "features", "scalar", "count"]
IMAGES, STEPS = 100, 10
"""The default minimum for images of patients."""
CELL = 11
"""Smaller counts are not shown."""


class Differential(Strict):
    """Differential privacy at the sources: DP-SGD at the level of patients (docs/explanation/privacy.md)."""

    multiplier: Annotated[float, Field(gt=0)] = 1.0
    """Noise multiplier: standard deviation of the noise on a step's sum of gradients, in units of `clip`."""
    clip: Annotated[float, Field(gt=0)] = 1.0
    """Norm to which the gradient of each patient is clipped."""
    delta: Annotated[float, Field(gt=0, lt=1)] | None = Field(None, examples=[1.0e-5])
    """Default: each client's number of patients to the power of -1.1."""
    secure: bool = False
    """Draw noise and samples from the operating system's secure generator. Runs are then private but not repeatable;
    without it noise follows from the seed, and whoever knows the seed can remove it."""


class Privacy(Strict):
    """The privacy policy of every client; `privacy: public` is short for `privacy: {public: true}`."""

    public: bool = False
    """The images are public or synthetic: no count or score is held back, and no minimum of images or steps holds."""

    release: tuple[Kind, ...] = ("weights", "update", "statistic", "scalar", "count")
    """Kinds of values that a client may send."""
    smallest_batch: Annotated[int, Field(ge=1)] = 16
    """Minimum number of images behind a mean of features that a client sends: one image's features can be inverted."""
    smallest_cell: Annotated[int, Field(ge=1)] = CELL
    """No file outside the clients' folders shows smaller counts, scores on groups that small, or what they could be
    computed from."""
    smallest_images: Annotated[int | None, Field(ge=1)] = None
    """Minimum number of images behind anything that a client sends. Default: 100; public images: 1."""
    smallest_steps: Annotated[int | None, Field(ge=1)] = None
    """Minimum number of local steps in a round behind a model or an update; a mean gradient counts as one pass over its
    images. Default: 10; public images: 1."""
    differential: Differential | None = None
    """Differential privacy at the sources; the report shows the epsilon spent. A run can have its own."""
    secure_aggregation: bool = False
    """Mask what the sources send, so that the server learns only their sum; refused for methods that need more."""


@dataclass(frozen=True)
class Minimum:
    """The minimum numbers of images and of local steps in a round behind anything that a client sends."""

    images: int = IMAGES
    steps: int = STEPS

    def refusal(self, client: str, images: int, steps: int | None = None) -> FdamedError | None:
        """The error for too few images, or too few steps if a model or an update is to be sent; None: enough.

        The server may read the error, so a small number of images is given as a range. A client without images has
        nobody to protect and may answer.
        """
        if not images:
            return None
        if images < self.images:
            agreed = f", or write `privacy.smallest_images: {images}` if the hospital agrees" if images >= CELL else ""
            return FdamedError(
                f"{client} has {vague(images, CELL)} images; the minimum for sharing any result is {self.images} "
                "(privacy.smallest_images)",
                f"hospital {client}",
                f"Give {client} at least {self.images} images, or remove it{agreed}. If the images are synthetic or "
                "public, write `privacy: public`.",
            )
        if steps is not None and steps < self.steps:
            return FdamedError(
                f"{client} takes {steps} local steps a round; the minimum for sharing a model is {self.steps} "
                "(privacy.smallest_steps)",
                f"hospital {client}",
                f"Raise its `epochs` or `steps`, or lower its `batch`, in `train` until there are {self.steps} steps, "
                "or lower privacy.smallest_steps if the hospital agrees.",
            )
        return None


DEFAULT_MINIMUM, NO_MINIMUM = Minimum(), Minimum(1, 1)
FOLDS = 5
"""Folds of the target's labeled images that `advise` holds out in turn; the minimum holds for a fold and the rest."""


def epoch_steps(images: int, batch: int) -> int:
    """Steps of one epoch; like the training loop, it drops a last batch of one image."""
    whole, rest = divmod(images, batch)
    return whole + (rest > 1 or images == 1)


def local_steps(images: int, recipe: Recipe) -> int:
    """Steps of local training in a round."""
    steps = recipe.epochs * epoch_steps(images, recipe.batch)
    return steps if recipe.steps is None else min(steps, recipe.steps)
