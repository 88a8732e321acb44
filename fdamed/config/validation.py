"""The `train.validation` section: which updates of sources the server aggregates (docs/explanation/validation.md)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from fdamed.config.base import Strict


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
