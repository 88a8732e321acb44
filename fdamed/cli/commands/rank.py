"""Rank the runs over the targets of one or several finished studies.

Examples:
    fdamed rank results/chexpert results/mimic --out ranks
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

from fdamed.core.errors import FdamedError
from fdamed.core.files import read_json, write_json, write_text
from fdamed.evaluation.comparisons import Ranking, ranking
from fdamed.report.plots.figure import standalone
from fdamed.report.plots.ranks import critical_difference

log = logging.getLogger(__name__)
GROUP = "analyze", 7
OPTIONS = {
    "studies": {"nargs": "+", "type": "path", "metavar": "FOLDER", "help": "results/STUDY of a finished study"},
    "--metric": {"default": "auc", "choices": ("auc", "acc"), "help": "the score to rank by (default: auc)"},
    "--out": {"type": "path", "metavar": "FOLDER", "help": "write ranks.json and ranks.svg there"},
}
Audits = dict[str, dict[str, Any]]
"""study/target -> its audit."""


def run(arguments: argparse.Namespace) -> None:
    audits = read_audits(arguments.studies, arguments.metric)
    ranks = rank(audits, arguments.metric)
    print(f"{len(audits)} targets, Friedman p = {ranks.p:.2g}, critical difference {ranks.apart:.2f}")
    for name, mean in zip(ranks.names, ranks.ranks, strict=True):
        print(f"{mean:9.2f}  {name}")
    if arguments.out:
        content = {
            "metric": arguments.metric,
            "targets": list(audits),
            "p": ranks.p,
            "apart": ranks.apart,
            "mean_ranks": dict(zip(ranks.names, ranks.ranks, strict=True)),
        }
        write_json(arguments.out / "ranks.json", content)
        write_text(arguments.out / "ranks.svg", standalone(critical_difference(ranks)))
        log.info(f"{arguments.out / 'ranks.svg'}")


def read_audits(studies: list[Path], metric: str) -> Audits:
    """The audits that have this score."""
    out: Audits = {}
    where, names = ", ".join(map(str, studies)), [study.resolve().name for study in studies]
    for name, study in zip(names, studies, strict=True):
        if names.count(name) > 1:
            fix = "Give each study once; rename a folder where two have the same name."
            raise FdamedError(f"two studies are called {name}", where, fix)
        files = sorted((study / "audit").glob("*.json"))
        if not files:
            fix = "Give the folder results/STUDY of a finished study."
            raise FdamedError("this study has no audit", str(study), fix)
        out |= {f"{name}/{f.stem}": audit for f in files if metric in (audit := read_json(f))["scores"]}
    if len(out) < 2:
        fix = "Give more studies, or one with `split.target: each`."
        raise FdamedError(f"{len(out)} target has an {metric}; ranks need two", where, fix)
    return out


def rank(audits: Audits, metric: str) -> Ranking:
    """The ranking of the runs that all targets have."""
    scores = [audit["scores"][metric] for audit in audits.values()]
    common = [name for name in scores[0] if all(name in s for s in scores)]
    found = ranking(common, [[s[name]["value"] for name in common] for s in scores])
    if found is None:
        fix = "Rank studies that share runs (by their names in the configuration)."
        raise FdamedError(f"{len(common)} run is in all of them; ranks need two", ", ".join(audits), fix)
    return found
