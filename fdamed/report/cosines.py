"""Heat maps of cosines: how well each source's updates agree with the target's, by layer and round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from fdamed.config.study import Config
from fdamed.core.run_record import layers
from fdamed.report import blocks

HEATS = 6
"""Heat maps on the page at most."""


def heats(runs: Path, config: Config) -> tuple[list[dict[str, Any]], int]:
    """Heat maps of the runs that looked at layers, swept ones last, mean over seeds, and how many more there are."""
    places = config.sweeps()
    pairs = [
        (run, target)
        for run in sorted(config.expanded_runs(), key=lambda name: name in places)
        for target in config.split.targets
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
