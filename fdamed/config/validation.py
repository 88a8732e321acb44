"""What the server lets into an aggregation: the `train.validation` section of the configuration (docs/guard.md)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from fdamed.config.base import Strict


class Guard(Strict):
    """Limits for the answers of sources; lengths are in medians of the others' updates."""

    longest: Annotated[float, Field(gt=1)] = 100.0
    """An update that is longer is left out of its round."""
    shortened: Annotated[float, Field(gt=1)] | None = 10.0
    """One that is longer than this is shortened to it; null: it is taken as it is, up to `longest`."""
    opposed: Annotated[float, Field(ge=-1, le=0)] | None = -0.2
    """Leave out of the round who points against the others, below this cosine, in any layer; null: nobody."""
    alike: Annotated[float, Field(ge=0, le=1)] | None = 0.1
    """Held against each other for that are hospitals whose declared label rates differ by no more; null: all are."""
    strikes: Annotated[int, Field(ge=1)] | None = 3
    """Rounds with a rejected answer after which a source is not asked again in this run; null: it always is."""

    @model_validator(mode="after")
    def _in_order(self) -> Guard:
        if self.shortened is not None and self.shortened > self.longest:
            raise ValueError(f"`shortened` is {self.shortened}, beyond `longest` ({self.longest}): nobody would be")
        return self
