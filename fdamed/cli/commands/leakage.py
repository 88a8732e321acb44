"""Check that no patient and no near-duplicate image is in two splits.

Writes leakage.json (counts) and clients/near_duplicates.csv (which images; it stays with the clients).

Examples:
    fdamed leakage --config config/config.yaml
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import logging
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from fdamed.cli.options import read_config
from fdamed.core.disclosure import cell_safe
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, write_json
from fdamed.data.duplicates import SMALLEST, near_duplicates, thumbnails
from fdamed.data.loader import load
from fdamed.data.manifest import SPLITS
from fdamed.data.splitting.leakage import check_manifests
from fdamed.pipeline.paths import Places, clinical, rows_in

log = logging.getLogger(__name__)
GROUP = "prepare", 8
PRIVATE = True
OPTIONS = {"--config": ""}
ROLES = {"train": "learn", "adapt": "learn", "val": "val", "test": "test"}
"""Split -> role; a near-duplicate in two roles is a leak."""


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    places, (_, split) = Places.of(config), clinical(config)
    if config.image.size < SMALLEST:
        what = f"near-duplicates cannot be found in images of {config.image.size} pixels"
        raise FdamedError(what, "image.size", f"Set image.size to {SMALLEST} or more.")
    orders = {p: rows_in(places.client(p) / "order.parquet", "cache") for p in split.clients}
    leakage = check_manifests(orders, split.rule)
    rows = pd.concat(orders.values(), ignore_index=True)
    thumbs = np.concatenate([thumbnails(load(places.client(p), SPLITS).images) for p in orders])
    roles, images = rows["split"].map(ROLES).to_numpy(dtype=object), rows["image"].to_numpy(dtype=object)
    pairs = near_duplicates(thumbs, roles)
    found = Counter(" and ".join(sorted((roles[q.first], roles[q.second]))) for q in pairs)
    listed = [(images[q.first], images[q.second], q.likeness) for q in pairs]
    write_pairs(places.clients / "near_duplicates.csv", listed)
    summary = dataclasses.asdict(leakage) | {
        "rule": split.rule,
        "near_duplicates": len(pairs),
        "near_duplicates_between": dict(sorted(found.items())),
        "images": len(rows),
    }
    write_json(places.root / "leakage.json", summary)
    log.info(
        f"{len(rows)} images: {leakage.patients_in_two_splits} patients in two splits, "
        f"{leakage.patients_in_two_clients} at two clients, {len(pairs)} near-duplicates across splits"
    )


def write_pairs(path: Path, pairs: list[tuple[str, str, float]]) -> None:
    with atomic(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["first", "second", "likeness"])
        writer.writerows((cell_safe(a), cell_safe(b), f"{likeness:.3f}") for a, b, likeness in pairs)
