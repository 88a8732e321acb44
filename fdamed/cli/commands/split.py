"""Split the index into one manifest per client, disjoint by patient.

Examples:
    fdamed split --config config/config.yaml
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

import pandas as pd

from fdamed.cli.options import print_left_out, read_config
from fdamed.config.split import Split
from fdamed.config.study import Config
from fdamed.core.counts import write_counts
from fdamed.core.files import digest
from fdamed.core.parts import TRAINED
from fdamed.data.loader import MISSING, classes_of
from fdamed.data.manifest import PARTS, content_hash
from fdamed.data.splitting.cohort import build
from fdamed.data.splitting.leakage import check_manifests
from fdamed.pipeline.paths import Places, clinical, rows_in, write_rows

log = logging.getLogger(__name__)
GROUP = "prepare", 6
PRIVATE = True
OPTIONS = {"--config": ""}


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    write(config, clinical(config)[1], Places.of(config))


def write(config: Config, split: Split, places: Places) -> None:
    """Split the index; nothing is written unless every client is complete."""
    cohort = build(rows_in(places.clients / "index.parquet", "ingest"), split, config.smallest_cell)
    leakage = check_manifests(cohort.manifests, split.rule, config.smallest_cell)
    clients = {client: describe(frame) for client, frame in cohort.manifests.items()}
    summary = {
        "by": split.by,
        "rule": split.rule,
        "seed": split.seed,
        "asked": asked(split),
        "clients": clients,
        "leakage": dataclasses.asdict(leakage),
        "patients_by_hospitals_they_fit": cohort.shared,
        "rows": cohort.rows,
        "left_out": cohort.left_out,
        "notes": cohort.notes,
        # Without the pseudonyms, which depend on the salt.
        "hash": digest({client: entry["content"] for client, entry in clients.items()}),
    }
    for client, frame in cohort.manifests.items():
        write_rows(places.client(client) / "manifest.parquet", frame)
    write_counts(places.root, "cohort.json", summary)
    for note in cohort.notes:
        log.log(logging.WARNING if "LEAKS" in note else logging.INFO, note)
    for head in constant_heads(config, cohort.manifests):
        log.warning(f"the auxiliary head `{head}` can learn nothing at some hospitals: `fdamed doctor` says where")
    for client, frame in cohort.manifests.items():
        log.info(f"{client}: {int(frame['split'].isin(TRAINED).sum())} images to train on")
        print_left_out(client, cohort.left_out.get(client, {}), config.smallest_cell)


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


def asked(split: Split) -> dict[str, Any]:
    """The sizes as the configuration has them; what was obtained stands beside each client."""
    return {key: getattr(split, key) for key in ("per_class", "labeled", "val", "test", "held_out")}


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
