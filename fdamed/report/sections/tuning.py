"""Tuned runs: the candidates, which one validation chose, and what the choice cost in labels, time and messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fdamed.config.runs import Value, candidates
from fdamed.core.run_record import Record, computed
from fdamed.evaluation.costs import on_cpu
from fdamed.evaluation.run_tables import ALL_TARGETS
from fdamed.report.section import Section
from fdamed.report.study import Study


@dataclass(frozen=True)
class Candidate:
    """One row of the table of a tuned run at one target."""

    name: str
    values: dict[str, Value]
    score: float | None
    """Validation score, mean over seeds; None: it may not be shown."""
    chosen: int
    """Seeds for which it was chosen."""
    seconds: float
    mb: float
    """Of one training, mean over seeds."""


@dataclass(frozen=True)
class Tuned:
    """A tuned run at one target."""

    run: str
    target: str
    seeds: int
    clients: list[str]
    """Whose validation parts chose."""
    labels: str
    """Labels of the target: trained on, and to choose by."""
    clock: str
    rows: list[Candidate]

    few: bool = False
    """Whether the validation parts of other sources were too small."""

    @property
    def own(self) -> bool:
        """Whether the target chose."""
        return self.clients == [self.target]

    def total(self, what: str) -> float:
        """Seconds or MB of all trainings."""
        return float(self.seeds * sum(getattr(row, what) for row in self.rows))

    def alone(self, what: str) -> float:
        """Seconds or MB of the chosen trainings."""
        return float(sum(row.chosen * getattr(row, what) for row in self.rows))


def tuned(study: Study, target: str) -> list[Tuned]:
    """The tuned runs at a target, where all candidates are trained and one is chosen."""
    out = []
    for run, trained in study.candidates.items():
        choices = [r for r in study.records if (r.run, r.target) == (run, target) and "tuned" in r.facts]
        seeds = {r.seed for r in choices}
        here = [r for r in trained if r.target == target and r.seed in seeds]
        if choices:
            out.append(_tuned(study, run, target, choices, here))
    return out


def _tuned(study: Study, run: str, target: str, choices: Sequence[Record], trained: Sequence[Record]) -> Tuned:
    clock = "cpu" if all(on_cpu(r) for r in trained) else "seconds"
    clients = list(dict.fromkeys(client for r in choices for client in r.facts["tuned"]["clients"]))
    rows = []
    for name, values in candidates(run, study.runs[run]).items():
        mine = [r for r in trained if r.run == name]
        scores = [r.validation[name] for r in choices if r.validation and name in r.validation]
        rows.append(
            Candidate(
                name=name,
                values=values,
                score=sum(scores) / len(scores) if len(scores) == len(choices) else None,
                chosen=sum(r.facts["tuned"]["candidate"] == name for r in choices),
                seconds=sum(computed(line, clock) for r in mine for line in r.timing) / max(1, len(mine)),
                mb=sum(r.bytes_out for r in mine) / 1e6 / max(1, len(mine)),
            )
        )
    labels = _labels(study, run, target, clients == [target])
    few = len(clients) < len(study.config.split.clients) - 1
    return Tuned(run, target, len(choices), clients, labels, "CPU seconds" if clock == "cpu" else "seconds", rows, few)


def _labels(study: Study, run: str, target: str, own: bool) -> str:
    spec = study.runs[run]
    if not own:
        return "none"
    val = study.cohort["clients"][target]["images"].get("val")
    few = spec.labeled or study.config.split.labeled
    trained = few if study.config.few_labels(spec) else "all"
    return f"{trained} to train on and {f'fewer than {study.smallest}' if val is None else val} to choose by"


def tables(study: Study) -> dict[str, pd.DataFrame]:
    rows: list[dict[str, Any]] = [
        {"target": one.target, "run": one.run, "candidate": row.name}
        | {"validation": row.score, "chosen": row.chosen, "seeds": one.seeds, "seconds": row.seconds, "mb": row.mb}
        for target in study.config.split.targets
        for one in tuned(study, target)
        for row in one.rows
    ]
    return {"tuning": pd.DataFrame(rows)}


def context(study: Study) -> dict[str, Any]:
    shown = {target: tuned(study, target) for target in study.config.split.targets}
    return {"shown": shown | {ALL_TARGETS: [one for found in shown.values() for one in found]}}


SECTION = Section(38, "Tuned runs", lambda study: study.candidates, tables=tables, context=context)
