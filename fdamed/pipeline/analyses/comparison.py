"""The runs of a target compared on the same patients, by subgroup and by calibration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fdamed.config.study import Config
from fdamed.core.counts import counts_of
from fdamed.core.disclosure import hides_classes
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.evaluation.audit import audit
from fdamed.pipeline.paths import Places, rows_in
from fdamed.pipeline.selection import all_runs


def compare(config: Config, target: str) -> dict[str, Any]:
    """The content of audit/{target}.json."""
    frame, p, runs = predictions(config, target)
    fedavg = (name for name, spec in config.expanded_runs().items() if spec.method == "fedavg" and name in runs)
    reference = next(fedavg, next(iter(runs)))
    random = stream(0, config.study, target, "audit")
    classes = hides_classes(counts_of(Places.of(config).root, target), config.smallest_cell)
    return {"target": target} | audit(frame, p, runs, reference, config.smallest_cell, random, classes)


def predictions(config: Config, target: str) -> tuple[pd.DataFrame, NDArray[Any], dict[str, dict[int, int]]]:
    """The test images, their probabilities (R, n) or (R, n, C), and run -> seed -> row of the probabilities."""
    first: pd.DataFrame | None = None
    rows: list[NDArray[Any]] = []
    runs: dict[str, dict[int, int]] = {}
    for one in all_runs(config):
        path = one.predictions(target)
        if one.target != target or not path.exists():
            continue
        frame = rows_in(path, "evaluate")
        first = frame if first is None else first
        if not frame[["patient", "y"]].equals(first[["patient", "y"]]):
            fix = "Run `fdamed evaluate` again for every run of this target."
            raise FdamedError(
                f"{one.key} was scored on other images than the runs before it", f"predictions of {target}", fix
            )
        runs.setdefault(one.name, {})[one.seed] = len(rows)
        rows.append(frame.filter(regex="^score").to_numpy(dtype=np.float64))
    if first is None:
        raise FdamedError("no run has been scored at this target", target, "Run `fdamed evaluate` first.")
    p = np.stack(rows)
    return first, p[:, :, 0] if p.shape[2] == 1 else p, runs
