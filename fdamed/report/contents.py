"""From a study's frames to what the page and the figures show."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fdamed import __version__
from fdamed.config import Config
from fdamed.disclosure import shareable, vague
from fdamed.evaluate import cohort as cohorts
from fdamed.evaluate.intervals import Interval
from fdamed.evaluate.tables import ALL_TARGETS, SUPPRESSED, summary
from fdamed.files import digest
from fdamed.records import Key, Record, layers
from fdamed.report import blocks, figures
from fdamed.report.page import View, legend, published, reasons, view

HEATS = 6
"""Heat maps on the page at most."""
KINDS = ("weights", "update", "statistic", "features", "scalar", "count")
PAPERS = frozenset({"chexpert", "mimic", "midrc"})
"""Cohorts of the healthcare paper's Table 2."""


@dataclass(frozen=True)
class Frames:
    """The tables of a study."""

    scores: pd.DataFrame
    headline: pd.DataFrame
    rounds: pd.DataFrame
    sent: pd.DataFrame
    traffic: pd.DataFrame
    sizes: pd.DataFrame

    def files(self) -> dict[str, pd.DataFrame]:
        """Table -> frame, as they are written beside the page."""
        return {
            "headline": self.headline,
            "scores": self.scores,
            "rounds": self.rounds,
            "bytes": self.traffic,
            "cohort": self.sizes,
        }


@dataclass(frozen=True)
class Known:
    """What page and figures share."""

    runs: dict[str, str]
    """Run -> method, those of the configuration that have a finished run or not, in its order."""
    summary: dict[tuple[str, str, str], Interval]
    megabytes: dict[tuple[str, str], float]
    views: list[View]
    by_kind: pd.DataFrame
    """Runs x kinds: MB a round."""
    heats: list[dict[str, Any]]

    @property
    def index(self) -> dict[str, int]:
        return {run: i for i, run in enumerate(self.runs)}


def known(config: Config, frames: Frames, heat_maps: list[dict[str, Any]]) -> Known:
    """Everything that is worked out once."""
    runs = {name: entry.method for name, entry in config.expanded_runs().items()}
    found = summary(frames.scores)
    pairs = zip(frames.traffic["target"], frames.traffic["run"], frames.traffic["mb_out"], strict=True)
    megabytes = {(str(t), str(r)): float(v) for t, r, v in pairs}
    targets = list(config.cut.targets)
    if len(targets) > 1:
        means = frames.traffic.groupby("run")["mb_out"].mean()
        megabytes |= {(ALL_TARGETS, str(r)): float(v) for r, v in means.items()}
        targets = [ALL_TARGETS, *targets]
    why = reasons(frames.scores)
    views = [view(t, runs, found, why, frames.rounds, megabytes) for t in targets]
    return Known(runs, found, megabytes, views, _by_kind(frames, list(runs)), heat_maps)


def _targets(frames: Frames) -> pd.Series[int]:
    """Run -> targets for which it has a finished run: what its bytes are a mean over."""
    return frames.traffic.groupby("run")["target"].nunique()


def _by_kind(frames: Frames, runs: list[str]) -> pd.DataFrame:
    table = frames.sent.pivot_table(index="run", columns="kind", values="mb_per_round", aggfunc="sum", fill_value=0.0)
    table = table.reindex(runs, fill_value=0.0).astype("float64")
    table = table.div(_targets(frames).reindex(runs, fill_value=1), axis=0)
    order = sorted(table.columns, key=lambda k: (KINDS.index(k) if k in KINDS else len(KINDS), str(k)))
    return table[order]


def heats(runs: Path, config: Config) -> tuple[list[dict[str, Any]], int]:
    """Heat maps of the runs that looked at layers, mean over seeds, and how many more there are."""
    pairs = [
        (run, target)
        for run in config.expanded_runs()
        for target in config.cut.targets
        if any((runs / run / target / str(seed) / "layers.jsonl").is_file() for seed in config.seeds)
    ]
    out = []
    for run, target in pairs[:HEATS]:
        rows = [row for seed in config.seeds for row in layers(runs / run / target / str(seed))]
        frame = pd.DataFrame(rows, columns=["round", "source", "layer", "cos"]).astype({"cos": "float64"})
        if frame.empty:
            continue
        title = f"{run}, target {target}"
        out.append({"title": title, "drawing": blocks.heat(frame, title)})
    return out, max(0, len(pairs) - HEATS)


def pictures(study: Known, frames: Frames) -> Iterator[tuple[str, Any]]:
    """Name and figure of each file in figures/: those of the first view under plain names."""
    first = study.views[0]
    best = [row.run for row in first.rows]
    here = frames.rounds[frames.rounds["target"] == first.name]
    scores = {row.run: row.auc for row in first.rows}
    megabytes = {run: mb for (target, run), mb in study.megabytes.items() if target == first.name}
    drawn = {
        "headline": figures.headline(scores, study.index, best, first.name),
        "rounds_auc": figures.rounds(here[here["metric"] == "test/auc"], study.index, best, "AUC", first.name),
        "rounds_acc": figures.rounds(here[here["metric"] == "test/acc"], study.index, best, "accuracy", first.name),
        "cost": figures.cost(scores, megabytes, study.index, first.name),
        "sent": figures.sent(study.by_kind),
    }
    yield from ((name, figure) for name, figure in drawn.items() if figure is not None)


def page(
    config: Config,
    study: Known,
    frames: Frames,
    records: Sequence[Record],
    missing: Sequence[Key],
    cohort: dict[str, Any],
    ingest: dict[str, Any],
    heats_left_out: int,
) -> dict[str, Any]:
    """What the template asks for."""
    smallest = config.privacy.smallest_cell
    open_config = shareable(config.model_dump(mode="json"))
    return {
        "cohort": config.cohort,
        "version": __version__,
        "phantom": config.phantom is not None,
        "rule": cohort.get("rule", config.cut.rule),
        "seeds": list(config.seeds),
        "missing": list(missing),
        "expected": len(records) + len(missing),
        "suppressed": bool(frames.scores["why"].str.startswith(SUPPRESSED).any()),
        "views": study.views,
        "legend": legend(study.views),
        "heats": study.heats,
        "heats_left_out": heats_left_out,
        "released": list(config.privacy.release),
        "kinds": list(study.by_kind.columns),
        "bars": blocks.bars(study.by_kind, [str(k) for k in study.by_kind.columns]),
        "parties": list(config.cut.parties),
        "sent": _sent_rows(frames, list(config.cut.parties), list(study.runs)),
        "smallest": smallest,
        "splits": [*cohorts.SPLITS, cohorts.TOTAL],
        "cohort_rows": _cohort_rows(frames.sizes, config),
        "leakage": _leakage(cohort, smallest),
        "rejects": cohorts.rejects(ingest.get("rejected") or {}, smallest),
        "published": _published(config, study) if config.phantom is None and config.cohort in PAPERS else None,
        "commands": _commands(config),
        "provenance": _provenance(config, records, cohort, ingest, digest(open_config)),
        "configuration": json.dumps(open_config, indent=2, ensure_ascii=False),
    }


def _sent_rows(frames: Frames, parties: list[str], runs: list[str]) -> list[dict[str, Any]]:
    targets = _targets(frames)
    sums = frames.sent.groupby(["run", "kind", "hospital"])["bytes"].sum()
    per_round = frames.sent.groupby(["run", "kind"])["mb_per_round"].sum()
    order = sorted(per_round.index, key=lambda pair: (runs.index(pair[0]), pair[1]))
    return [
        {
            "run": run,
            "kind": kind,
            "bytes": [round(float(sums.get((run, kind, party), 0.0)) / int(targets[run])) for party in parties],
            "mb": float(per_round[run, kind]) / int(targets[run]),
        }
        for run, kind in order
    ]


def _cohort_rows(sizes: pd.DataFrame, config: Config) -> list[dict[str, Any]]:
    out = []
    for party, group in sizes.groupby("hospital", sort=False):
        cells = [
            (i, f"{r:.0%} pos." if isinstance(r, float) else "")
            for i, r in zip(group["images"], group["rate"], strict=True)
        ]
        meaning = config.cut.parties.get(str(party), "")
        out.append({"hospital": party, "meaning": meaning, "cells": cells, "patients": list(group["patients"])[-1]})
    return out


def _leakage(cohort: dict[str, Any], smallest: int) -> list[tuple[bool, str]]:
    found = cohort.get("leakage") or {}
    words = {
        "patients_in_two_splits": "patients stand in two splits",
        "patients_in_two_parties": "patients stand in two hospitals",
        "near_duplicates": "near-duplicate images across splits",
    }
    out = []
    for key, text in words.items():
        count = found.get(key)
        if count is None:
            out.append((False, f"not checked: {text}"))
        else:
            out.append((count == 0, f"{vague(int(count), smallest)} {text}"))
    return out


def _published(config: Config, study: Known) -> dict[str, Any]:
    entries = {name: (entry.method, entry.auxiliary is not None) for name, entry in config.expanded_runs().items()}
    source, rows = published(config.cohort, entries, study.summary, study.views[0].name)
    return {"source": source, "rows": rows, "target": study.views[0].name}


def _commands(config: Config) -> list[str]:
    return [
        "# save the configuration below as study.json, name your own data root in it, then",
        "snakemake --cores all --configfile study.json",
        "fdamed report --config study.json    # this page again, without training",
    ]


def _provenance(
    config: Config, records: Sequence[Record], cohort: dict[str, Any], ingest: dict[str, Any], configured: str
) -> list[tuple[str, str]]:
    versions = dict.fromkeys(
        ", ".join(f"{k} {shareable(v)}" for k, v in (r.facts.get("versions") or {}).items()) for r in records
    )
    weights = digest(sorted((r.key, r.weights) for r in records))
    return [
        ("seeds", ", ".join(str(s) for s in config.seeds)),
        ("configuration", configured),
        ("index", str(ingest.get("hash", "–"))),
        ("cohort", str(cohort.get("hash", "–"))),
        *((f"manifest {party}", str(c.get("hash", "–"))) for party, c in cohort["parties"].items()),
        ("all final weights", weights),
        ("versions", "; ".join(versions) or "–"),
    ]
