"""What the page's template asks for, block by block."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fdamed import __version__
from fdamed.config.study import Config
from fdamed.core.disclosure import shareable
from fdamed.core.files import digest
from fdamed.core.run_record import Key, Record
from fdamed.evaluation import cohort as cohorts
from fdamed.evaluation.run_tables import SUPPRESSED
from fdamed.report import advice as advised
from fdamed.report import advice_evaluation as hindsight
from fdamed.report import blocks, headline, hospitals, jacobians, reproduce
from fdamed.report import comparisons as audited
from fdamed.report import membership_inference as recognized
from fdamed.report import paper_tables as beside
from fdamed.report import privacy as guarded
from fdamed.report import protocol as words
from fdamed.report import reproduction as repeated
from fdamed.report import rounds_log as notes
from fdamed.report import sweeps as swept
from fdamed.report.aggregate import Frames, Known, gain_rows, steady
from fdamed.report.sweeps import NAMES
from fdamed.report.target_view import legend


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
        "study": config.study,
        "version": __version__,
        "phantom": config.phantom is not None,
        "rule": cohort.get("rule", ""),
        "seeds": list(config.seeds),
        "missing": list(missing),
        "expected": len(records) + len(missing),
        "suppressed": bool(frames.scores["why"].str.startswith(SUPPRESSED).any()),
        "cards": headline.cards(study.views[0], found.main, NAMES[found.main], study.audits.get(first)),
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
        "guards": guarded.block(config, guarded.costs(records)) + recognized.block(cohort.get("membership") or []),
        "kinds": list(study.by_kind.columns),
        "bars": blocks.bars(study.by_kind, [str(k) for k in study.by_kind.columns]),
        "clients": list(shown.values()),
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
        swept.block(s, study.found.summary, target, study.metrics, steady(study, s), beside.table4(config, s.options))
        for s in study.sweeps
    ]


def _gains(study: Known, target: str) -> dict[str, Any]:
    rows = study.gains[target]
    name = NAMES[study.found.main]
    title = f"Gain in {name} at {target} by auxiliary task"
    return {"drawing": blocks.gains(gain_rows(rows), title, f"gain in {name}"), "rows": rows}
