"""`fdamed audit`: methods compared on the same patients, and by subgroup, inside the target hospital.

It reads the hospital's own predictions and lets out what may be shown: differences, scores of groups that are large
enough, and calibration in bins that are large enough.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fdamed.config import Config
from fdamed.errors import FdamedError
from fdamed.files import write_json
from fdamed.stages.places import Places, add_config, read_config, rows_in

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from fdamed.evaluate.paired import Estimate, Scored

Runs = dict[str, dict[int, int]]
"""Run -> seed -> row of the scores."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--target", required=True, metavar="PARTY", help="the hospital whose predictions are compared")
    parser.add_argument("--json", action="store_true", help="print the audit too, as one JSON object")


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    if arguments.target not in config.cut.targets:
        fix = f"Choose one of: {', '.join(config.cut.targets)}."
        raise FdamedError(f"the configuration has no target {arguments.target!r}", "command line", fix)
    content = audited(config, arguments.target)
    path = Places.of(config).root / "audit" / f"{arguments.target}.json"
    write_json(path, content)
    if arguments.json:
        print(json.dumps(content, indent=1, ensure_ascii=False))
    print(f"{len(content['pairs'])} pairs, {len(content['groups'])} groups: {path}", file=sys.stderr)


def reference_of(config: Config) -> str:
    """The run that gains are told against: FedAvg where there is one, else the first."""
    runs = config.expanded_runs()
    return next((name for name, run in runs.items() if run.method == "fedavg"), next(iter(runs)))


def audited(config: Config, target: str) -> dict[str, Any]:
    """What audit/{target}.json holds."""
    from fdamed.disclosure import hides, small

    frame, chances, runs = predictions(config, target)
    smallest, several = config.privacy.smallest_cell, chances.ndim == 3
    y = frame["y"].to_numpy()
    reference = reference_of(config)
    if reference not in runs:
        reference = next(iter(runs))
    content: dict[str, Any] = {
        "target": target,
        "reference": reference,
        "runs": {name: sorted(rows) for name, rows in runs.items()},
        "level": 0.95,
        "scores": {},
        "pairs": [],
        "groups": [],
        "gaps": [],
        "calibration": {},
    }
    if small(len(y), smallest) if several else hides(len(y), int(y.sum()), smallest):
        return content | {"suppressed": f"fewer than {smallest} images of a class"}
    scored = _scored(frame, chances)
    content["scores"] = {
        metric: {name: _told(_mean(found, list(rows.values()))) for name, rows in runs.items()}
        for metric, found in scored.items()
    }
    content["pairs"] = _pairs(scored, runs)
    if not several:
        content["groups"], content["gaps"] = _by_group(frame, chances, runs, reference, smallest)
        content["calibration"] = _calibration(y, chances, runs, smallest)
    return content


def predictions(config: Config, target: str) -> tuple[pd.DataFrame, NDArray[Any], Runs]:
    """Rows of the test split, scores (R, n) or with several classes (R, n, C), and which row is whose."""
    import numpy as np

    places = Places.of(config)
    rows: list[NDArray[Any]] = []
    runs: Runs = {}
    first: pd.DataFrame | None = None
    for name in config.expanded_runs():
        for seed in config.seeds:
            path = places.predictions(target, name, target, seed)
            if not path.exists():
                continue
            frame = rows_in(path, "evaluate")
            first = frame if first is None else first
            if not (frame["patient"].equals(first["patient"]) and frame["y"].equals(first["y"])):
                raise FdamedError(
                    f"{name}, seed {seed}, was judged on other images than the runs before it",
                    f"predictions of {target}",
                    "Run `fdamed evaluate` again for every run of this target.",
                )
            columns = [c for c in frame.columns if c == "score" or c.startswith("score_")]
            values = frame[columns].to_numpy(dtype=np.float64)
            runs.setdefault(name, {})[seed] = len(rows)
            rows.append(values[:, 0] if len(columns) == 1 else values)
    if first is None:
        raise FdamedError("no run has been scored at this target", target, "Run `fdamed evaluate` first.")
    return first, np.stack(rows), runs


def _scored(frame: pd.DataFrame, chances: NDArray[Any]) -> dict[str, Scored]:
    """Score -> its values and covariance over patients, where they can be told."""
    import numpy as np

    from fdamed.evaluate.paired import accuracy_of, auc_of, share_of

    y, patient = frame["y"].to_numpy(), frame["patient"].to_numpy()
    if chances.ndim == 3:
        _, owner = np.unique(patient, return_inverse=True)
        found = {"acc": share_of(chances.argmax(axis=2) == y, owner)}
    else:
        found = {"auc": auc_of(y, chances, patient), "acc": accuracy_of(y, chances, patient)}
    return {metric: scored for metric, scored in found.items() if scored is not None}


def _mean(scored: Scored, rows: list[int]) -> Estimate:
    from fdamed.evaluate.paired import mean_of

    return mean_of(scored, rows)


def _pairs(scored: dict[str, Scored], runs: Runs) -> list[dict[str, Any]]:
    """Every two runs by the seeds that both have; p-values also as Holm corrects them over all pairs of a score."""
    from itertools import combinations

    from fdamed.evaluate.paired import difference, holm

    out = []
    for metric, found in scored.items():
        told = []
        for a, b in combinations(runs, 2):
            both = [s for s in runs[a] if s in runs[b]]
            if both:
                apart = difference(found, [runs[a][s] for s in both], [runs[b][s] for s in both])
                told.append({"metric": metric, "first": a, "second": b, "seeds": len(both), **_told(apart)})
        for row, p in zip(told, holm([row["p"] for row in told]), strict=True):
            row["p_holm"] = p
        out += told
    return out


def _by_group(
    frame: pd.DataFrame, chances: NDArray[Any], runs: Runs, reference: str, smallest: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    from collections import defaultdict

    from fdamed.evaluate.subgroups import gap, groups, standings

    rows = {name: list(by_seed.values()) for name, by_seed in runs.items()}
    told: list[dict[str, Any]] = []
    scores: dict[tuple[str, str, str], dict[str, Estimate]] = defaultdict(dict)
    for group in groups(frame, smallest):
        found = standings(group, frame, chances, rows, reference)
        if not found:
            continue
        entry: dict[str, Any] = {"by": group.by, "are": group.are, "n": group.n, "runs": {}}
        for name, s in found.items():
            parts = {"auc": s.auc, "sensitivity": s.sensitivity, "false_alarms": s.false_alarms}
            entry["runs"][name] = {k: _told(v) for k, v in parts.items() if v is not None} | {
                "brier": s.brier,
                "calibration_error": s.calibration_error,
                "gain": _told(s.gain) if s.gain else None,
            }
            for metric, value in parts.items():
                if value is not None and len(group.by) == 1:
                    scores[group.by[0], name, metric][group.are[0]] = value
        told.append(entry)
    gaps = [
        {"by": by, "run": name, "metric": metric, **asdict(widest)}
        for (by, name, metric), by_group in scores.items()
        if (widest := gap(by_group))
    ]
    return told, gaps


def _calibration(y: NDArray[Any], chances: NDArray[Any], runs: Runs, smallest: int) -> dict[str, Any]:
    """Run -> the bins of its first seed, joined until they tell nothing of single persons, and the mean error."""
    from fdamed.evaluate.calibration import calibration_error, joined, reliability

    out = {}
    for name, rows in runs.items():
        bins = [reliability(y, chances[row]) for row in rows.values()]
        errors = [e for b in bins if (e := calibration_error(b)) is not None]
        shown = [{"n": b.n, "chance": b.chance, "rate": b.rate} for b in joined(bins[0], smallest)]
        out[name] = {"error": sum(errors) / len(errors), "bins": shown}
    return out


def _told(estimate: Estimate) -> dict[str, Any]:
    return {
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "p": estimate.p,
        "patients": estimate.patients,
        "seeds_error": estimate.seeds,
    }
