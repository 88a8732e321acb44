"""Partition public benchmark sets into clients (replaces ingest, split, cache and leakage).

Examples:
    fdamed partition --config config/papers/fedgp/fashion_mnist.yaml
"""

from __future__ import annotations

import argparse
import logging
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from fdamed.cli.options import read_config
from fdamed.config.datasets import Benchmark
from fdamed.config.split import Partition
from fdamed.config.study import Config
from fdamed.core.counts import write_counts
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, digest, private
from fdamed.data.benchmark.partition import partition, repeated
from fdamed.data.benchmark.samples import fitted, numbered_alike
from fdamed.data.benchmark.sources import read
from fdamed.data.manifest import PARTS, content_hash
from fdamed.data.splitting.leakage import count_leaks
from fdamed.pipeline.paths import Places, write_rows

log = logging.getLogger(__name__)
GROUP = "prepare", 9
OPTIONS = {"--config": ""}
LISTED = 50
"""Up to this number, clients are logged one by one."""


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    write(config, Places.of(config))


def write(config: Config, places: Places) -> None:
    """Write images.npy and order.parquet of every client; ingest.json, cohort.json and leakage.json."""
    data, split, image = config.data, config.split, config.image
    if not isinstance(data, Benchmark) or not isinstance(split, Partition):
        fix = "Radiographs go through `fdamed ingest`, `split`, `cache` and `leakage`."
        raise FdamedError("this configuration has no benchmark sets", "data.layout", fix)
    begin = time.monotonic()
    raw = {name: read(data.domains[name], f"data.domains.{name}", image.size) for name in split.sets or data.domains}
    sets = numbered_alike({name: fitted(found, image.size, config.model.channels) for name, found in raw.items()})
    classes = max(int(s.y.max()) for s in sets.values()) + 1
    if classes > config.model.classes:
        what = f"the data has {classes} classes, the model {config.model.classes}"
        raise FdamedError(what, "model.classes", f"Set it to {classes}.")
    parts = partition(sets, split)
    private(places.clients)
    for client, part in parts.items():
        with atomic(places.client(client) / "images.npy") as draft, draft.open("wb") as file:
            np.save(file, part.x)
        write_rows(places.client(client) / "order.parquet", part.order)
        if len(parts) <= LISTED:
            log.info(f"{client}: {', '.join(f'{n} {name}' for name, n in _counts(part.order).items() if n)}")
    log.info(f"{len(parts)} clients")
    same, rows = repeated(parts), sum(map(len, sets.values()))
    clients = {client: _describe(part.order, config.model.classes) for client, part in parts.items()}
    known = digest({client: entry["content"] for client, entry in clients.items()})
    leakage = asdict(count_leaks({client: part.order for client, part in parts.items()}))
    index = {"layout": "benchmark", "rows": rows, "patients": rows, "rejected": {}, "burned_in": 0, "hash": known}
    write_counts(places.root, "ingest.json", index | {"seconds": round(time.monotonic() - begin, 3)})
    cohort = {"by": split.by, "rule": "partition", "seed": split.seed, "clients": clients, "leakage": leakage}
    fits = {"patients_by_hospitals_they_fit": {"1": rows}, "notes": [], "hash": known}
    write_counts(places.root, "cohort.json", cohort | fits)
    copies = {"near_duplicates": sum(same.values()), "near_duplicates_between": same, "images": rows}
    write_counts(places.root, "leakage.json", leakage | {"rule": "partition"} | copies)


def _counts(order: pd.DataFrame) -> dict[str, int]:
    return {name: int((order["split"] == name).sum()) for name in PARTS}


def _describe(order: pd.DataFrame, classes: int) -> dict[str, Any]:
    """Sizes of one client, as `fdamed split` describes them; every sample is its own patient."""
    counts, known = _counts(order), content_hash(order[["image", "y", "split", "crc32"]])
    ones = {name: int(order["y"][order["split"] == name].sum()) for name in PARTS}
    positives = ones if classes == 2 else None
    return {"hash": known, "content": known, "images": counts, "patients": counts, "positives": positives}
