"""Compare the runs of a target on the same patients, by subgroup and by calibration.

It runs inside the target client and lets out only what may be shown: differences, and the scores and calibration of
groups and bins that are large enough.

Examples:
    fdamed audit --config config/config.yaml --target edema --json
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fdamed.cli.options import add_config, add_json, read_config
from fdamed.config.study import Config
from fdamed.core.disclosure import rounded
from fdamed.core.errors import FdamedError
from fdamed.core.files import write_json
from fdamed.pipeline.paths import Places, rows_in
from fdamed.pipeline.selection import check_known

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from fdamed.evaluation.subgroups import Group, Standing

log = logging.getLogger(__name__)
GROUP = "analyze", 2
PRIVATE = True
Runs = dict[str, dict[int, int]]
"""Run -> seed -> row of the scores."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--target", required=True, metavar="CLIENT", help="the hospital whose predictions are compared")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    check_known("target", arguments.target, config.split.targets)
    content = audited(config, arguments.target)
    path = Places.of(config).root / "audit" / f"{arguments.target}.json"
    write_json(path, content)
    if arguments.json:
        print(json.dumps(content, indent=1, ensure_ascii=False))
    log.info(f"{len(content['pairs'])} pairs, {len(content['groups'])} groups: {path}")


def reference_of(config: Config) -> str:
    """The run that gains are told against: FedAvg where there is one, else the first."""
    runs = config.expanded_runs()
    return next((name for name, run in runs.items() if run.method == "fedavg"), next(iter(runs)))


def audited(config: Config, target: str) -> dict[str, Any]:
    """What audit/{target}.json holds."""
    import numpy as np

    from fdamed.core.disclosure import hides, small
    from fdamed.core.rng import stream
    from fdamed.evaluation import bootstrap as resampling
    from fdamed.evaluation import comparisons
    from fdamed.evaluation.intervals import LEVEL

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
        "level": LEVEL,
        "scores": {},
        "pairs": [],
        "groups": [],
        "gaps": [],
        "calibration": {},
    }
    if small(len(y), smallest) if several else hides(len(y), int(y.sum()), smallest):
        return content | {"suppressed": f"fewer than {smallest} images of a class"}
    scored = comparisons.scored(frame, chances, stream(0, config.study, target, "audit"))
    content["replicates"] = resampling.affordable(chances.shape[0], chances.shape[1])
    content["scores"] = comparisons.means(scored, runs)
    content["pairs"] = comparisons.pairs(scored, runs, reference, frame, chances)
    if several:  # the class that was named, and how sure it was of it
        content["calibration"] = _calibration(chances.argmax(axis=2) == y, chances.max(axis=2), runs, smallest)
    else:
        content["groups"], content["gaps"] = _by_group(frame, chances, runs, reference, smallest)
        content["calibration"] = _calibration(np.broadcast_to(y, chances.shape), chances, runs, smallest)
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


def _by_group(
    frame: pd.DataFrame, chances: NDArray[Any], runs: Runs, reference: str, smallest: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Every group that may be shown, and the widest gaps between those of one attribute."""
    from itertools import groupby

    from fdamed.evaluation.subgroups import groups, standings

    entries: list[dict[str, Any]] = []
    gaps: list[dict[str, Any]] = []
    # An attribute at a time: what its groups keep for the gaps, a number a patient, run and seed, is much.
    for by, members in groupby(groups(frame, smallest), key=lambda group: group.by):
        known = [(group, found) for group in members if (found := standings(group, frame, chances, runs))]
        entries += [_entry(frame, chances, group, found, runs, reference, smallest) for group, found in known]
        if len(by) == 1:
            hidden = any(group.n is None for group, _ in known)
            gaps += _gaps(by[0], {group.are[0]: found for group, found in known}, reference, hidden, smallest)
    return entries, gaps


def _entry(
    frame: pd.DataFrame,
    chances: NDArray[Any],
    group: Group,
    found: Mapping[str, Standing],
    runs: Runs,
    reference: str,
    smallest: int,
) -> dict[str, Any]:
    """What is told of one group: its runs' scores, what they gain on the reference, and calibration in large bins."""
    from fdamed.evaluation.comparisons import score, told

    hidden = group.n is None
    names = _may_be_told(hidden)
    out: dict[str, Any] = {"by": group.by, "are": group.are, "n": group.n, "runs": {}}
    for name, standing in found.items():
        values = {k: (told if k == "bias" else score)(v) for k in names if (v := standing.told(k))}
        brier = values.pop("brier", None)
        gains = {
            k: told(v) for k in names if name != reference and (v := standing.gain(k, found[reference])) is not None
        }
        out["runs"][name] = rounded(
            values
            | {
                "brier": brier["value"] if brier else None,
                "brier_low": brier["low"] if brier else None,
                "brier_high": brier["high"] if brier else None,
                "calibration_error": None if hidden else standing.calibration_error,
                "calibration_limit": None if hidden else standing.calibration_limit,
                "gain": gains.get("auc"),
                "gains": gains,
            },
            _decimals(hidden, smallest),
        )
    # Where the number of images is not told, neither are the bins that it could be counted from.
    if not hidden and len(group.by) == 1:
        y, p = frame["y"].to_numpy()[group.rows], chances[:, group.rows]
        shown = {name: _bins(y, p[next(iter(rows.values()))], smallest) for name, rows in runs.items()}
        out["calibration"] = rounded({name: bins for name, bins in shown.items() if bins})
    return out


def _gaps(
    by: str, found: Mapping[str, Mapping[str, Standing]], reference: str, hidden: bool, smallest: int
) -> list[dict[str, Any]]:
    """Score by score and run by run, from group -> run -> standing; `hidden`: the groups' numbers are not told."""
    from fdamed.evaluation.comparisons import told
    from fdamed.evaluation.subgroups import LOWER_IS_BETTER, gap

    out = []
    for name in next(iter(found.values()), {}):
        for score in _may_be_told(hidden):
            here = {group: runs[name].scores[score] for group, runs in found.items() if score in runs[name].scores}
            both = {group: runs[name].paired(score, runs[reference]) for group, runs in found.items()}
            beside = {group: pair for group, pair in both.items() if pair} if name != reference else None
            widest = gap(here, beside, score in LOWER_IS_BETTER)
            if widest:
                change = told(widest.change) if widest.change else None
                told_gap = {k: getattr(widest, k) for k in ("best", "worst", "value", "low", "high")}
                content = rounded(told_gap | {"change": change}, _decimals(hidden, smallest))
                out.append({"by": by, "run": name, "metric": score, **content})
    return out


def _may_be_told(hidden: bool) -> tuple[str, ...]:
    """The scores of a group; where its number of images is hidden, none that is a share of them.

    Shares of several runs and seeds have one denominator, and four decimals are enough to find it.
    """
    from fdamed.evaluation.subgroups import SCORES

    return tuple(name for name in SCORES if not hidden or name in ("auc", "brier"))


def _decimals(hidden: bool, smallest: int) -> int:
    """How many decimals are told of a group.

    An AUC is a whole number of pairs, of which there are at least smallest^2: where a step of rounding is wider than
    one pair, every AUC that is told fits any number of pairs.
    """
    if not hidden:
        return 4
    return 2 if smallest**2 >= 100 else 1


def _calibration(y: NDArray[Any], chances: NDArray[Any], runs: Runs, smallest: int) -> dict[str, Any]:
    """Run -> the bins of its first seed, joined until they tell nothing of single persons, and the mean error.

    `y` (R, n): what came true of each chance.
    """
    from fdamed.evaluation.calibration import by_chance, calibration_error, reliability

    out = {}
    for name, rows in runs.items():
        errors = [e for r in rows.values() if (e := calibration_error(reliability(y[r], chances[r]))) is not None]
        limits = [e for r in rows.values() if (e := by_chance(y[r], chances[r])) is not None]
        first = next(iter(rows.values()))
        out[name] = {
            "error": sum(errors) / len(errors),
            "limit": sum(limits) / len(limits),
            "bins": _bins(y[first], chances[first], smallest),
        }
    return out


def _bins(y: NDArray[Any], p: NDArray[Any], smallest: int) -> list[dict[str, Any]]:
    from fdamed.evaluation.calibration import joined, reliability

    return [{"n": b.n, "chance": b.chance, "rate": b.rate} for b in joined(reliability(y, p), smallest)]
