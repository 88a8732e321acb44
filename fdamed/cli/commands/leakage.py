"""Check that no patient and no near-duplicate image is in two parts.

Writes leakage.json, and with the clients leakage.json (counts) and near_duplicates.csv (which images).

Examples:
    fdamed leakage --config config/config.yaml
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter

import numpy as np
import pandas as pd

from fdamed.cli.options import read_config
from fdamed.config.split import Split
from fdamed.config.study import Config
from fdamed.core.counts import write_counts
from fdamed.core.disclosure import to_csv, vague
from fdamed.core.errors import FdamedError
from fdamed.core.files import write_text
from fdamed.data.duplicates import SMALLEST, near_duplicates, thumbnails
from fdamed.data.loader import load
from fdamed.data.manifest import PARTS
from fdamed.data.splitting.leakage import check_manifests
from fdamed.pipeline.paths import Places, clinical, rows_in

GROUP = "prepare", 8
PRIVATE = True
OPTIONS = {"--config": ""}
COLUMNS = ["first", "second", "likeness"]
ROLES = {"train": "learn", "adapt": "learn", "val": "val", "test": "test"}
"""Part -> role; a near-duplicate in two roles is a leak."""


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    write(config, clinical(config)[1], Places.of(config))


def write(config: Config, split: Split, places: Places) -> None:
    """Check the clients of a split; raises if the rule forbids what is found."""
    if config.image.size < SMALLEST:
        what = f"near-duplicates cannot be found in images of {config.image.size} pixels"
        raise FdamedError(what, "image.size", f"Set image.size to {SMALLEST} or more.")
    orders = {p: rows_in(places.client(p) / "order.parquet", "cache") for p in split.clients}
    leakage = check_manifests(orders, split.rule, config.smallest_cell)
    rows = pd.concat(orders.values(), ignore_index=True)
    thumbs = np.concatenate([thumbnails(load(places.client(p), PARTS).images) for p in orders])
    roles, images = rows["split"].map(ROLES).to_numpy(dtype=object), rows["image"].to_numpy(dtype=object)
    pairs = near_duplicates(thumbs, roles)
    found = Counter(" and ".join(sorted((roles[q.first], roles[q.second]))) for q in pairs)
    listed = [(images[q.first], images[q.second], round(q.likeness, 3)) for q in pairs]
    write_text(places.clients / "near_duplicates.csv", to_csv(pd.DataFrame(listed, columns=COLUMNS)))
    summary = dataclasses.asdict(leakage) | {
        "rule": split.rule,
        "near_duplicates": len(pairs),
        "near_duplicates_between": dict(sorted(found.items())),
        "images": len(rows),
    }
    write_counts(places.root, "leakage.json", summary)
    counts = leakage.patients_in_two_splits, leakage.patients_in_two_clients, len(pairs)
    parts, clients, copies = (vague(n, config.smallest_cell) for n in counts)
    # Not to the log, which lies outside the clients' folders and stays when the smallest cell is changed.
    print(f"{parts} patients in two parts, {clients} at two clients, {copies} near-duplicates across parts")
