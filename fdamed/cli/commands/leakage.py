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
from typing import Any

from fdamed.cli.options import read_config
from fdamed.config.study import Config
from fdamed.core.disclosure import cell_safe
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, write_json
from fdamed.pipeline.paths import Places, clinical, rows_in

log = logging.getLogger(__name__)
GROUP = "prepare", 8
PRIVATE = True
OPTIONS = {"--config": ""}
ROLES = {"train": "learn", "adapt": "learn", "val": "val", "test": "test"}
"""Split -> role; a near-duplicate in two roles is a leak."""


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    check(config, Places.of(config))


def check(config: Config, places: Places) -> None:
    """Write leakage.json and clients/near_duplicates.csv."""
    import numpy as np
    import pandas as pd

    from fdamed.data.duplicates import SMALLEST, near_duplicates, thumbnails
    from fdamed.data.loader import load
    from fdamed.data.manifest import SPLITS
    from fdamed.data.splitting.leakage import check_manifests

    _, cut = clinical(config)
    if config.image.size < SMALLEST:
        what = f"near-duplicates cannot be found in images of {config.image.size} pixels"
        raise FdamedError(what, "image.size", f"Set image.size to {SMALLEST} or more.")
    orders = {p: rows_in(places.client(p) / "order.parquet", "cache") for p in cut.clients}
    leakage = check_manifests(orders, cut.rule)
    rows = pd.concat([o.assign(client=p) for p, o in orders.items()], ignore_index=True)
    thumbs = np.concatenate([thumbnails(load(places.client(p), SPLITS).images) for p in orders])
    roles = rows["split"].map(ROLES).to_numpy(dtype=object)
    pairs = near_duplicates(thumbs, roles)
    found = Counter(" and ".join(sorted((roles[q.first], roles[q.second]))) for q in pairs)
    images = rows["image"].to_numpy(dtype=object)
    _list(places.clients / "near_duplicates.csv", [(images[q.first], images[q.second], q.likeness) for q in pairs])
    summary: dict[str, Any] = dataclasses.asdict(leakage) | {
        "rule": cut.rule,
        "near_duplicates": len(pairs),
        "near_duplicates_between": dict(sorted(found.items())),
        "images": len(rows),
    }
    write_json(places.root / "leakage.json", summary)
    log.info(
        f"{len(rows)} images: {leakage.patients_in_two_splits} patients in two splits, "
        f"{leakage.patients_in_two_clients} at two clients, {len(pairs)} near-duplicates across splits"
    )


def _list(path: Path, pairs: list[tuple[str, str, float]]) -> None:
    with atomic(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["first", "second", "likeness"])
        writer.writerows((cell_safe(a), cell_safe(b), f"{c:.3f}") for a, b, c in pairs)
