"""What is worked out once from a study's frames, for page, figures and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fdamed.config.runs import Run
from fdamed.config.study import Config
from fdamed.core.run_record import Record
from fdamed.evaluation import auxiliary_gain as gains
from fdamed.evaluation import communication as traffic
from fdamed.evaluation import protocol, reproduction, sweeps
from fdamed.evaluation import run_tables as tables
from fdamed.evaluation import time_to_score as clock
from fdamed.evaluation.compute_cost import Cost, costs
from fdamed.evaluation.intervals import Interval
from fdamed.evaluation.run_tables import ALL_TARGETS
from fdamed.report import advice as advised
from fdamed.report import advice_evaluation as hindsight
from fdamed.report import comparisons as audited
from fdamed.report import hospitals
from fdamed.report import reproduction as repeated
from fdamed.report import rounds_log as notes
from fdamed.report import sweeps as swept
from fdamed.report.reproduction import Row
from fdamed.report.sweeps import NAMES
from fdamed.report.target_view import Findings, View, reasons, view


@dataclass(frozen=True)
class Frames:
    """The tables of a study that come straight from its files."""

    scores: pd.DataFrame
    rounds: pd.DataFrame
    sent: pd.DataFrame
    traffic: pd.DataFrame
    spent: pd.DataFrame
    """MB sent until each round."""
    clock: pd.DataFrame
    """Seconds until each round."""
    sizes: pd.DataFrame
    absences: pd.DataFrame
    weights: pd.DataFrame
    jacobians: pd.DataFrame


@dataclass(frozen=True)
class Known:
    """Everything that is worked out once, for page, figures and tables."""

    runs: Mapping[str, Run]
    """Those that are not swept, as the configuration has them; where all are swept, all."""
    every: dict[str, Run]
    """All runs, every sweep written out."""
    fold: Mapping[str, str]
    """Swept run -> what all values of its sweep are called together."""
    found: Findings
    views: Sequence[View]
    sweeps: Sequence[sweeps.Sweep]
    gains: Mapping[str, Sequence[gains.Gain]]
    """Target -> gains by auxiliary tasks."""
    costs: Sequence[Cost]
    budgets: Sequence[protocol.Budget]
    by_kind: pd.DataFrame
    """Runs x kinds: MB a round."""
    repeated: list[reproduction.Cell]
    """Figures of the paper that the configuration names, with ours."""
    repeated_rows: list[Row]
    """The same by method."""
    advice: Mapping[str, advised.Advice | None]
    """Target -> what was recommended before training, None where it is missing; empty if nobody asked for it."""
    judged: Mapping[str, hindsight.Hindsight | None]
    """Target -> whether that was right."""
    audits: Mapping[str, audited.Audit]
    """Target -> what its own audit lets out."""

    @property
    def index(self) -> dict[str, int]:
        return {run: i for i, run in enumerate(self.found.runs)}

    @property
    def metrics(self) -> tuple[str, ...]:
        """The main score first."""
        return ("auc", "acc") if self.found.main == "auc" else ("acc",)


def known(
    config: Config,
    frames: Frames,
    records: Sequence[Record],
    cohort: Mapping[str, Any],
    advice: Mapping[str, advised.Advice | None],
    audits: Mapping[str, audited.Audit],
) -> Known:
    """Work it out."""
    every, places = config.expanded_runs(), config.sweeps()
    order = [*(r for r in every if r not in places), *(r for r in every if r in places)]
    targets = list(config.split.targets)
    megabytes = {
        (str(t), str(r)): float(v)
        for t, r, v in zip(frames.traffic["target"], frames.traffic["run"], frames.traffic["mb_out"], strict=True)
    }
    if len(targets) > 1:
        means = frames.traffic.groupby("run")["mb_out"].mean()
        megabytes |= {(ALL_TARGETS, str(r)): float(v) for r, v in means.items()}
        targets = [ALL_TARGETS, *targets]
    smallest = config.privacy.smallest_cell
    shown = [r for r in records if not tables.hidden(r, smallest)]
    main = tables.main_score(frames.scores)
    found = Findings(
        runs={name: ", then ".join(p.method for p in config.phases(every[name])) for name in order},
        swept=frozenset(places),
        main=main,
        chance=0.5 if main == "auc" or config.model.classes == 2 else None,
        summary=tables.summary(frames.scores),
        chosen=protocol.at_chosen_round(records, smallest),
        why=reasons(frames.scores),
        rounds=frames.rounds,
        megabytes=megabytes,
        by_bytes=traffic.score_by_bytes(frames.rounds, frames.spent, main),
        by_seconds=clock.score_by_seconds(frames.rounds, frames.clock, main),
        remarks=notes.remarks(frames.absences, records),
    )
    judged = {
        target: None if told is None else hindsight.judged(told, frames.scores, main, NAMES[main], found.runs)
        for target, told in advice.items()
    }
    plain = {name: every[name] for name in order if name not in places} or every
    cells = reproduction.cells(config.published, config.split.targets, shown) if config.published else []
    fold = {name: f"{place.run} (swept)" for name, place in places.items()}
    return Known(
        runs=plain,
        every=every,
        fold=fold,
        found=found,
        views=[view(t, found, audits.get(t)) for t in targets],
        sweeps=sweeps.grouped(places),
        gains={t: gains.gains(plain, frames.scores, main, t) for t in targets},
        costs=costs(sorted(records, key=lambda r: order.index(r.run)), every, config.model, fold),
        budgets=protocol.budgets(records, config, cohort),
        repeated=cells,
        repeated_rows=repeated.rows(cells, places),
        by_kind=hospitals.by_kind(frames.sent, frames.traffic, order, fold),
        advice=advice,
        judged=judged,
        audits=audits,
    )


def steady(study: Known, sweep: sweeps.Sweep) -> list[str]:
    """Runs that stand as lines beside a sweep: those with as many labels and as much noise as its own."""
    own = [study.every[folder] for cells in sweep.runs.values() for folder in cells.values()]
    entries = {
        n: (r.method, r.auxiliary is not None)
        for n, r in study.runs.items()
        if n not in study.fold and all(_alike(r, s, sweep.options) and r.then == s.then for s in own)
    }
    return swept.references(entries)


def _alike(run: Run, other: Run, swept_over: Sequence[str]) -> bool:
    labels = run.labeled == other.labeled or "labeled" in swept_over or run.method in ("fedavg", "oracle")
    return labels and (run.noise == other.noise or "noise" in swept_over)


def gain_rows(entries: Sequence[gains.Gain]) -> list[tuple[str, Interval]]:
    several = len({g.base for g in entries}) > 1
    return [(f"{g.base}: {' + '.join(g.heads)}" if several else " + ".join(g.heads), g.score) for g in entries]
