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

log = logging.getLogger(__name__)
GROUP = "analyze", 7
OPTIONS = {
    "studies": {"nargs": "+", "type": "path", "metavar": "FOLDER", "help": "results/STUDY of a finished study"},
    "--metric": {"default": "auc", "choices": ("auc", "acc"), "help": "the score to rank by (default: auc)"},
    "--runs": {"nargs": "+", "metavar": "RUN", "help": "only these (default: the runs that all studies have)"},
    "--out": {"type": "path", "metavar": "FOLDER", "help": "write ranks.json and ranks.svg there"},
}
Sets = dict[str, dict[str, Any]]
"""study/target -> its audit."""


def run(arguments: argparse.Namespace) -> None:
    sets = audits(arguments.studies, arguments.metric)
    content = ranked(sets, arguments.metric, arguments.runs)
    print(f"{len(sets)} targets, Friedman p = {content['p']:.2g}, critical difference {content['apart']:.2f}")
    print(f"{'mean rank':>9}  {'better':>6} {'equal':>6} {'worse':>6}  run")
    for row in content["runs"]:
        print(f"{row['rank']:9.2f}  {row['better']:6} {row['equal']:6} {row['worse']:6}  {row['run']}")
    if arguments.out:
        write_json(arguments.out / "ranks.json", content)
        write_text(arguments.out / "ranks.svg", _picture(sets, arguments.metric, [r["run"] for r in content["runs"]]))
        log.info(f"{arguments.out / 'ranks.svg'}")


def audits(studies: list[Path], metric: str) -> Sets:
    """The audits that have this score."""
    out: Sets = {}
    names = [study.resolve().name for study in studies]
    for name in names:
        if names.count(name) > 1:
            fix = "Give each study once; rename a folder where two have the same name."
            raise FdamedError(f"two studies are called {name}", ", ".join(map(str, studies)), fix)
    for name, study in zip(names, studies, strict=True):
        files = sorted((study / "audit").glob("*.json"))
        if not files:
            raise FdamedError(
                "this study has no audit", str(study), "Give the folder results/STUDY of a finished study."
            )
        out |= {f"{name}/{f.stem}": read_json(f) for f in files}
    told = {name: audit for name, audit in out.items() if metric in audit["scores"]}
    if len(told) < 2:
        fix = "Give more studies, or one with `split.target: each`."
        raise FdamedError(f"{len(told)} target tells its {metric}; ranks need two", ", ".join(map(str, studies)), fix)
    return told


def ranked(sets: Sets, metric: str, wanted: list[str] | None) -> dict[str, Any]:
    """The content of ranks.json: mean ranks, Friedman's test, and counts of significant differences."""
    from fdamed.evaluation.intervals import SURE

    found = _ranking(sets, metric, wanted)
    wins = {name: [0, 0, 0] for name in found.names}
    for audit in sets.values():
        for pair in audit["pairs"]:
            if pair["metric"] == metric and pair["first"] in wins and pair["second"] in wins:
                place = 1 if pair["p_holm"] >= SURE else 0 if pair["value"] > 0 else 2
                wins[pair["first"]][place] += 1
                wins[pair["second"]][2 - place] += 1
    rows = [
        {"run": name, "rank": rank, "better": wins[name][0], "equal": wins[name][1], "worse": wins[name][2]}
        for name, rank in zip(found.names, found.ranks, strict=True)
    ]
    return {"metric": metric, "targets": list(sets), "p": found.p, "apart": found.apart, "runs": rows}


def _ranking(sets: Sets, metric: str, wanted: list[str] | None) -> Any:
    from fdamed.evaluation.comparisons import ranking

    scores = [audit["scores"][metric] for audit in sets.values()]
    everywhere = [name for name in scores[0] if all(name in s for s in scores)]
    absent = [name for name in wanted or () if name not in everywhere]
    if absent:
        fix = f"Choose from: {', '.join(everywhere)}."
        raise FdamedError(f"not every target tells the {metric} of {', '.join(absent)}", "--runs", fix)
    common = [name for name in everywhere if not wanted or name in wanted]
    if len(common) < 2:
        fix = "Rank studies that share runs (by their names in the configuration)."
        raise FdamedError(f"{len(common)} run is in all of them; ranks need two", ", ".join(sets), fix)
    return ranking(common, [[s[name]["value"] for name in common] for s in scores])


def _picture(sets: Sets, metric: str, runs: list[str]) -> str:
    from fdamed.report.plots.figure import standalone
    from fdamed.report.plots.ranks import critical_difference

    return standalone(critical_difference(_ranking(sets, metric, runs)))
