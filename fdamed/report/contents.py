"""From a study's frames to what the page and the figures show."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fdamed import __version__
from fdamed.config import Config
from fdamed.disclosure import shareable
from fdamed.evaluate import cohort as cohorts
from fdamed.evaluate import gains, protocol, reproduction, sweeps, tables, traffic
from fdamed.evaluate.costs import Cost, costs
from fdamed.evaluate.intervals import Interval
from fdamed.evaluate.tables import ALL_TARGETS, SUPPRESSED
from fdamed.files import digest
from fdamed.records import Key, Record, layers
from fdamed.report import advice as advised
from fdamed.report import (
    audited,
    beside,
    blocks,
    figures,
    guarded,
    hindsight,
    hospitals,
    jacobians,
    notes,
    repeated,
    reproduce,
    swept,
)
from fdamed.report import protocol as words
from fdamed.report.page import ALL_BYTES, Findings, View, legend, reasons, trails, view
from fdamed.report.repeated import Row
from fdamed.report.swept import NAMES
from fdamed.runs import Run

HEATS = 6
"""Heat maps on the page at most."""


@dataclass(frozen=True)
class Frames:
    """The tables of a study that come straight from its files."""

    scores: pd.DataFrame
    rounds: pd.DataFrame
    sent: pd.DataFrame
    traffic: pd.DataFrame
    spent: pd.DataFrame
    """MB sent until each round."""
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
    targets = list(config.cut.targets)
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
        remarks=notes.remarks(frames.absences, records),
    )
    judged = {
        target: None if told is None else hindsight.judged(told, frames.scores, main, NAMES[main], found.runs)
        for target, told in advice.items()
    }
    plain = {name: every[name] for name in order if name not in places} or every
    cells = reproduction.cells(config.published, config.cut.targets, shown) if config.published else []
    fold = {name: f"{place.run} (swept)" for name, place in places.items()}
    return Known(
        runs=plain,
        every=every,
        fold=fold,
        found=found,
        views=[view(t, found) for t in targets],
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


def heats(runs: Path, config: Config) -> tuple[list[dict[str, Any]], int]:
    """Heat maps of the runs that looked at layers, swept ones last, mean over seeds, and how many more there are."""
    places = config.sweeps()
    pairs = [
        (run, target)
        for run in sorted(config.expanded_runs(), key=lambda name: name in places)
        for target in config.cut.targets
        if any((runs / run / target / str(seed) / "layers.jsonl").is_file() for seed in config.seeds)
    ]
    out: list[dict[str, Any]] = []
    shown = 0
    for run, target in pairs:
        if len(out) == HEATS:
            break
        shown += 1
        rows = [row for seed in config.seeds for row in layers(runs / run / target / str(seed))]
        frame = pd.DataFrame(rows, columns=["round", "source", "layer", "cos"]).astype({"cos": "float64"})
        if frame.empty:
            continue
        title = f"{run}, target {target}"
        out.append({"title": title, "drawing": blocks.heat(frame, title)})
    return out, len(pairs) - shown


def pictures(study: Known, frames: Frames) -> Iterator[tuple[str, Any]]:
    """Name and figure of each file in figures/: those of the first view under plain names."""
    first, found = study.views[0], study.found
    shown = first.plain or first.swept
    best = [row.run for row in shown]
    here = frames.rounds[frames.rounds["target"] == first.name]
    name = NAMES[found.main]
    scores = {row.run: row.scores[found.main] for row in shown}
    ways = trails(found.by_bytes[found.by_bytes["target"] == first.name])
    drawn = {
        "headline": figures.headline(scores, study.index, best, name, first.name),
        "rounds_auc": figures.rounds(here[here["metric"] == "test/auc"], study.index, best, "AUC", first.name),
        "rounds_acc": figures.rounds(here[here["metric"] == "test/acc"], study.index, best, "accuracy", first.name),
        "cost": figures.cost(scores, ways, study.index, (f"{ALL_BYTES}, log scale", name), first.name),
        "sent": figures.sent(study.by_kind),
        "auxiliary_gain": figures.gains(_gain_rows(study.gains[first.name]), f"gain in {name}", first.name),
        "reproduction": figures.cells(study.repeated_rows),
    }
    for sweep in (s for s in study.sweeps if len(s.options) == 1):
        ticks = [(x, str(v)) for x, v in zip(swept.positions(sweep), sweep.axis(), strict=True)]
        for metric in study.metrics:
            lines = swept.sweep_lines(sweep, found.summary, first.name, metric)
            levels = swept.levels(_beside(study, sweep), found.summary, first.name, metric)
            names = (sweep.name, NAMES[metric])
            drawn[f"sweep_{sweep.options[0]}_{metric}"] = figures.curves(lines, names, first.name, ticks, levels)
    for (run, target, kind), part in frames.weights.groupby(["run", "target", "kind"], sort=False):
        title = f"{run}, target {target}"
        drawn[f"{kind}_{run}_{target}"] = figures.curves(notes.weight_lines(part), ("round", str(kind)), title)
    for target, statistic, lines in jacobians.drawings(frames.jacobians, study.index):
        names = ("round", jacobians.NAMES[statistic])
        drawn[f"jacobian_{statistic}_{target}"] = figures.curves(lines, names, f"target {target}")
    yield from ((name, figure) for name, figure in drawn.items() if figure is not None)


def _beside(study: Known, sweep: sweeps.Sweep) -> list[str]:
    """Runs that stand as lines beside a sweep: those with as many labels and as much noise as its own."""
    own = [study.every[folder] for cells in sweep.runs.values() for folder in cells.values()]
    entries = {
        n: (r.method, r.auxiliary is not None)
        for n, r in study.runs.items()
        if n not in study.fold and all(_alike(r, s, sweep.options) and r.then == s.then for s in own)
    }
    return swept.references(entries)


def _alike(run: Run, other: Run, swept_over: Sequence[str]) -> bool:
    labels = run.labelled == other.labelled or "labelled" in swept_over or run.method in ("fedavg", "oracle")
    return labels and (run.noise == other.noise or "noise" in swept_over)


def _gain_rows(entries: Sequence[gains.Gain]) -> list[tuple[str, Interval]]:
    several = len({g.base for g in entries}) > 1
    return [(f"{g.base}: {' + '.join(g.heads)}" if several else " + ".join(g.heads), g.score) for g in entries]


def page(
    config: Config,
    study: Known,
    frames: Frames,
    records: Sequence[Record],
    missing: Sequence[Key],
    cohort: dict[str, Any],
    ingest: dict[str, Any],
    heat_maps: tuple[list[dict[str, Any]], int],
) -> dict[str, Any]:
    """What the template asks for."""
    smallest, found = config.privacy.smallest_cell, study.found
    open_config = shareable(config.model_dump(mode="json"))
    weights, weights_left_out = notes.weight_plots(frames.weights)
    steep, steep_left_out = jacobians.block(frames.jacobians, study.index)
    first = study.views[0].name
    shown = hospitals.columns(frames.sent, config)
    return {
        "cohort": config.cohort,
        "version": __version__,
        "phantom": config.phantom is not None,
        "rule": cohort.get("rule", ""),
        "seeds": list(config.seeds),
        "missing": list(missing),
        "expected": len(records) + len(missing),
        "suppressed": bool(frames.scores["why"].str.startswith(SUPPRESSED).any()),
        "views": study.views,
        "metrics": study.metrics,
        "names": NAMES,
        "chance": found.chance,
        "protocol": {v.name: words.sentences(config, cohort, study.budgets, v.name) for v in study.views},
        "budgets": {v.name: [b for b in study.budgets if b.target == v.name] for v in study.views},
        "legend": legend(study.views),
        "advice": {target: None if told is None else advised.block(told) for target, told in study.advice.items()},
        "judged": study.judged,
        "audits": _audits(study),
        "ranks": _ranks(study),
        "judged_together": hindsight.together(study.judged, NAMES[found.main]),
        "sweeps": {v.name: _sweeps(config, study, v.name) for v in study.views} if study.sweeps else {},
        "gains": {v.name: _gains(study, v.name) for v in study.views} if any(study.gains.values()) else {},
        "heats": heat_maps[0],
        "heats_left_out": heat_maps[1],
        "weights": weights,
        "weights_left_out": weights_left_out,
        "jacobians": steep,
        "jacobians_left_out": steep_left_out,
        "absences": notes.left_out(frames.absences),
        "released": list(config.privacy.release),
        "guards": guarded.block(config, guarded.costs(records)),
        "kinds": list(study.by_kind.columns),
        "bars": blocks.bars(study.by_kind, [str(k) for k in study.by_kind.columns]),
        "parties": list(shown.values()),
        "sent": hospitals.sent_rows(frames.sent, frames.traffic, list(shown), list(found.runs)),
        "costs": beside.table3(study.costs),
        "costs_source": beside.printed()["costs"]["source"],
        "smallest": smallest,
        "splits": [*cohorts.SPLITS, cohorts.TOTAL],
        "cohort_rows": hospitals.cohort_rows(frames.sizes, config),
        "leakage": hospitals.leakage(cohort.get("leakage") or {}, smallest),
        "rejects": cohorts.rejects(ingest.get("rejected") or {}, smallest),
        "published": beside.table2(config, study.runs, found.summary, first),
        "ordering": beside.ordering(config, study.runs, found.summary, first, found.main),
        "repeated": study.repeated,
        "repeated_rows": repeated.block(study.repeated_rows) if study.repeated else {},
        "repeated_metric": config.published.metric if config.published else "",
        "repeated_source": config.published.source if config.published else "",
        "commands": reproduce.COMMANDS,
        "provenance": reproduce.provenance(config, records, cohort, ingest, digest(open_config)),
        "configuration": json.dumps(open_config, indent=2, ensure_ascii=False),
    }


def _audits(study: Known) -> dict[str, Any]:
    return {
        v.name: audited.block(study.audits[v.name], [r.run for r in v.plain or v.swept], study.found.runs, study.index)
        for v in study.views
        if v.name in study.audits
    }


def _ranks(study: Known) -> dict[str, Any] | None:
    found = audited.ranked(study.audits, list(study.runs))
    return {"drawing": audited.critical_difference(found), "sets": found.sets, "p": found.p} if found else None


def _sweeps(config: Config, study: Known, target: str) -> list[dict[str, Any]]:
    return [
        swept.block(s, study.found.summary, target, study.metrics, _beside(study, s), beside.table4(config, s.options))
        for s in study.sweeps
    ]


def _gains(study: Known, target: str) -> dict[str, Any]:
    rows = study.gains[target]
    name = NAMES[study.found.main]
    title = f"Gain in {name} at {target} by auxiliary task"
    return {"drawing": blocks.gains(_gain_rows(rows), title, f"gain in {name}"), "rows": rows}
