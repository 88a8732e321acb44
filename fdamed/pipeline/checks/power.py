"""What a study can show, before it is trained: power, what stays hidden, what a validation part can choose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from fdamed.config.study import Config
from fdamed.core.disclosure import hides, hides_classes, small, vague
from fdamed.evaluation.calibration import PER_BIN, POINTS
from fdamed.evaluation.comparison import power
from fdamed.evaluation.intervals import counted, listed
from fdamed.evaluation.subgroups import groups
from fdamed.pipeline.checks.cohort import counted as parts_of

LARGE = 0.1
"""A study that can show only larger differences of AUC can hardly show that two methods differ."""
Finding = tuple[str, str, str]
"""`ok` or `warn`, the name of the check, and what it found."""


def power_findings(config: Config, manifests: Mapping[str, pd.DataFrame]) -> Iterator[Finding]:
    """What each target's test part can show, what will be suppressed, and what its validation part can choose."""
    smallest, seeds, runs = config.smallest_cell, len(config.seeds), len(config.expanded_runs())
    pairs = max(1, runs * (runs - 1) // 2)
    for target in [name for name in config.split.targets if name in manifests]:  # a hospital apart has its own alone
        test, val = (manifests[target][manifests[target]["split"] == part] for part in ("test", "val"))
        if hides(len(test), int(test["y"].sum()), smallest, int(test["patient"].nunique())):
            few = f"fewer than {smallest} patients, or images of a class"
            detail = f"the test part of {target} has {few}: no score will be shown"
            cure = "give it more test images (split.test), or write `privacy: public` if the images are public"
            yield "warn", "suppressed", f"{detail}; {cure}"
            continue
        ill, well = (int(test[test["y"] == y]["patient"].nunique()) for y in (1, 0))
        shown = f"{ill:,} positive and {well:,} negative test patients"
        if hides_classes(parts_of(manifests[target]), smallest) or small(ill, smallest) or small(well, smallest):
            patients = int(test["patient"].nunique())
            ill, well = patients // 2, patients - patients // 2  # else they would follow from the points
            shown = f"at best (if half of them are positive), the {patients:,} test patients"
        points = 100 * power.expected(ill, well, seeds).smallest_difference(pairs)
        detail = (
            f"{shown} of {target} and "
            f"{counted(seeds, 'seed')} can show a difference of {points:.0f} points of AUC between two of "
            f"{counted(runs, 'run')} (80% power, {counted(pairs, 'pair')}; assumed: AUC {power.AUC}, correlation "
            f"{power.CORRELATION}, standard deviation over seeds {power.SEEDS})"
        )
        yield "ok" if points <= 100 * LARGE else "warn", "power", detail
        yield from _sections(test, target, smallest)
        if seeds == 1:
            yield (
                "warn",
                "seeds",
                "one seed: a difference between methods cannot be distinguished from random variation",
            )
        if not power.can_choose(len(val), int(val["patient"].nunique()), int(val["y"].sum())):
            detail = f"the validation part of {target} ({vague(len(val), smallest)} images) is too small to choose by"
            yield "warn", "validation", f"{detail}: no round will be chosen and no model registered (split.val)"
    hidden = [
        f"{client} ({part})"
        for client, frame in manifests.items()
        for part, rows in frame.groupby("split")
        if hides(len(rows), int(rows["y"].sum()), smallest, int(rows["patient"].nunique()))
    ]
    if hidden:
        few = f"fewer than {smallest} patients, or images of a class"
        detail = f"{few}, so that counts and scores are not shown: {listed(hidden, 6)}"
        yield "warn", "small counts", f"{detail}; all of them stay in clients/*/counts.json and clients/*/scores"


def _sections(test: pd.DataFrame, target: str, smallest: int) -> Iterator[Finding]:
    """Whether the report can show subgroups and calibration of a target."""
    missing = []
    if not any(len(group.by) == 1 for group in groups(test, smallest)):
        missing.append(f"subgroups (each needs {smallest} patients, and images of both classes)")
    ill = int(test["y"].sum())
    if min(len(test) // PER_BIN, ill // smallest, (len(test) - ill) // smallest) < POINTS:
        missing.append(f"calibration (it needs {POINTS} times {PER_BIN} test images of both classes)")
    if missing:
        yield "warn", "report", f"the test part of {target} is small: without {listed(missing)}"
