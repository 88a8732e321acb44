"""Partition public benchmark sets into clients (replaces ingest, split, cache and leakage).

Examples:
    fdamed partition --config config/papers/fedgp/fashion_mnist.yaml
"""

from __future__ import annotations

import argparse
import logging
import time
from typing import Any

from fdamed.cli.options import read_config
from fdamed.config.datasets import Benchmark
from fdamed.config.split import Partition
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, digest, private, write_json
from fdamed.pipeline.paths import Places

log = logging.getLogger(__name__)
GROUP = "prepare", 9
OPTIONS = {"--config": ""}
MANY, FEW = 50, 5
"""With more clients than MANY, the log names only FEW."""


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    write(config, Places.of(config))


def write(config: Config, places: Places) -> None:
    """Write images.npy and order.parquet of every client; ingest.json, cohort.json and leakage.json."""
    import numpy as np

    from fdamed.data.benchmark.partition import partition, repeated, shared
    from fdamed.data.benchmark.samples import fitted, numbered_alike
    from fdamed.data.benchmark.sources import read

    if not isinstance(config.data, Benchmark) or not isinstance(config.split, Partition):
        fix = "Radiographs go through `fdamed ingest`, `split`, `cache` and `leakage`."
        raise FdamedError("this configuration has no benchmark sets", "data.layout", fix)
    begin = time.monotonic()
    used = config.split.sets or tuple(config.data.domains)
    sets = numbered_alike(
        {
            name: fitted(
                read(config.data.domains[name], f"data.domains.{name}", config.image.size),
                config.image.size,
                config.model.channels,
            )
            for name in used
        }
    )
    classes = max(int(s.y.max()) for s in sets.values()) + 1
    if classes > config.model.classes:
        raise FdamedError(
            f"the data has {classes} classes, the model {config.model.classes}",
            "model.classes",
            f"Set it to {classes}.",
        )
    parts = partition(sets, config.split)
    private(places.clients)
    for client, part in parts.items():
        folder = places.client(client)
        with atomic(folder / "images.npy") as draft, draft.open("wb") as file:
            np.save(file, part.x)
        with atomic(folder / "order.parquet") as draft:
            part.order.to_parquet(draft, index=False)
    for client in [*parts][:FEW] if len(parts) > MANY else parts:
        log.info(f"{client}: {_told(parts[client].order)}")
    if len(parts) > MANY:
        log.info(f"... {len(parts)} clients in all")
    same, twice = repeated(parts), shared(parts)
    described = {client: _describe(part.order, config.model.classes) for client, part in parts.items()}
    none = {
        "patients_in_two_splits": twice["splits"],
        "patients_in_two_clients": twice["clients"],
        "images_in_two_splits": twice["splits"],
    }
    rows = sum(map(len, sets.values()))
    write_json(
        places.root / "ingest.json",
        {
            "layout": "benchmark",
            "rows": rows,
            "patients": rows,
            "rejected": {},
            "burned_in": 0,
            "hash": digest({k: v["content"] for k, v in described.items()}),
            "seconds": round(time.monotonic() - begin, 3),
        },
    )
    write_json(
        places.root / "cohort.json",
        {
            "by": config.split.by,
            "rule": "partition",
            "seed": config.split.seed,
            "clients": described,
            "leakage": none,
            "patients_by_hospitals_they_fit": {"1": rows},
            "notes": [],
            "hash": digest({k: v["content"] for k, v in described.items()}),
        },
    )
    summary = none | {
        "rule": "partition",
        "near_duplicates": sum(same.values()),
        "near_duplicates_between": same,
        "images": rows,
    }
    write_json(places.root / "leakage.json", summary)


def _told(order: Any) -> str:
    return ", ".join(f"{n} {split}" for split, n in order["split"].value_counts(sort=False).items())


def _describe(order: Any, classes: int) -> dict[str, Any]:
    from fdamed.data.manifest import SPLITS, content_hash

    found = order["split"].value_counts()
    counts = {name: int(found.get(name, 0)) for name in SPLITS}
    known = content_hash(order[["image", "y", "split", "crc32"]])
    ones = order.groupby("split")["y"].sum() if classes == 2 else None
    positives = None if ones is None else {name: int(ones.get(name, 0)) for name in SPLITS}
    return {"hash": known, "content": known, "images": counts, "patients": counts, "positives": positives}
