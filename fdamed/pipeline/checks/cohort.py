"""What a cohort contains: the sizes of its parts, and the auxiliary heads that can learn nothing from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from fdamed.config.study import Config
from fdamed.data.loader import MISSING, classes_of
from fdamed.data.manifest import PARTS, content_hash


def describe(frame: pd.DataFrame) -> dict[str, Any]:
    """Sizes and label rates of one manifest; `content` is its hash without the pseudonyms."""
    hashes = {"hash": content_hash(frame), "content": content_hash(frame.drop(columns=["patient", "study"]))}
    return hashes | counted(frame)


def counted(frame: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Images, patients and positive images of each part of a manifest."""
    by_part = {name: frame[frame["split"] == name] for name in PARTS}
    return {
        "images": {name: len(rows) for name, rows in by_part.items()},
        "patients": {name: int(rows["patient"].nunique()) for name, rows in by_part.items()},
        "positives": {name: int(rows["y"].sum()) for name, rows in by_part.items()},
    }


def constant_heads(config: Config, manifests: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """Head -> a warning, for each auxiliary head that runs train at a source where all images have the same label."""
    trained = dict.fromkeys(h for run in config.expanded_runs().values() if run.auxiliary for h in run.auxiliary.heads)
    sources = [c for c in manifests if config.split.targets != (c,)]
    out: dict[str, str] = {}
    for head in trained:
        void = []
        for client in sources:
            rows = manifests[client]
            rows = rows[rows["split"].isin(("train", "adapt"))]
            classes = classes_of({head: rows[head].to_numpy()}, head, config.model.races)
            if len(set(classes[classes != MISSING].tolist())) < 2:
                void.append(client)
        if void:
            out[head] = (
                f"the auxiliary head `{head}` can learn nothing at {', '.join(void)}: all images there have the same "
                f"{head}, or none is known. Remove it from runs.*.auxiliary, or keep other images, too (split.where)"
            )
    return out
