"""The sections of the page in their order: a new block is a template in `sections/` and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Section:
    """`name`.html has an element of the same id; it is shown where one of the contents `needs` is there."""

    name: str
    title: str
    """In the list of contents."""
    needs: tuple[str, ...] = ()

    @property
    def template(self) -> str:
        return f"{self.name}.html"


SECTIONS = (
    Section("scores", "Scores"),
    Section("rounds", "By round"),
    Section("audit", "Same patients", ("audits",)),
    Section("sweeps", "Sweeps", ("sweeps",)),
    Section("gains", "Auxiliary tasks", ("gains",)),
    Section("published", "Beside the paper", ("published", "ordering", "repeated")),
    Section("advice", "Advice before training", ("advice",)),
    Section("cosines", "Cosines", ("heats",)),
    Section("weights", "Weights of sources", ("weights",)),
    Section("jacobians", "Jacobians", ("jacobians",)),
    Section("bytes", "What left each hospital"),
    Section("communication", "Score against cost"),
    Section("cost", "What a round costs"),
    Section("absences", "Hospitals left out", ("absences",)),
    Section("cohort", "Cohort and rejects"),
    Section("reproduce", "How to reproduce"),
)


def shown(content: Mapping[str, Any]) -> list[Section]:
    """Those that this study has something for."""
    return [s for s in SECTIONS if not s.needs or any(content[key] for key in s.needs)]
