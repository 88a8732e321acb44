"""Index a raw data set: clients/index.parquet and rejects.csv.

Examples:
    fdamed ingest --config config/config.yaml
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import time

from fdamed.cli.options import print_left_out, read_config
from fdamed.config.datasets import DataSet
from fdamed.config.study import Config
from fdamed.core.counts import write_counts
from fdamed.core.errors import FdamedError
from fdamed.core.files import private, write_text
from fdamed.core.locks import locked
from fdamed.data.ingestion import check_share, read_index
from fdamed.data.manifest import content_hash
from fdamed.data.row_reader import Rejects
from fdamed.pipeline.paths import Places, clinical, write_rows

log = logging.getLogger(__name__)
GROUP = "prepare", 5
PRIVATE = True
OPTIONS = {"--config": ""}


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    places = Places.of(config)
    with locked(private(places.clients)):
        ingest(config, places)


def ingest(config: Config, places: Places) -> None:
    """Read the data set; rejects.csv is always written, index.parquet only if enough rows are valid."""
    data, _ = clinical(config)
    begin, rejects, listed = time.monotonic(), Rejects(), places.clients / "rejects.csv"
    try:
        frame = read_index(data, _salt(data, places), rejects)
    finally:
        write_text(listed, rejects.as_csv())
    check_share(data, len(frame), rejects, str(listed))
    write_rows(places.clients / "index.parquet", frame)
    summary = {
        "layout": config.data.layout,
        "rows": len(frame),
        "patients": int(frame["patient"].nunique()),
        "rejected": rejects.counts(),
        "burned_in": int(frame["burned_in"].fillna(False).sum()),
        "hash": content_hash(frame.drop(columns=["patient", "study"])),
        "seconds": round(time.monotonic() - begin, 3),
    }
    write_counts(places.root, "ingest.json", summary)
    refused = ", ".join(f"{reason} {n}" for reason, n in rejects.counts().items()) or "nothing refused"
    log.info(f"{len(frame)} images of {summary['patients']} patients; {refused}")
    print_left_out("ingest", rejects.counts(), config.smallest_cell)


def _salt(data: DataSet, places: Places) -> str:
    """The configured salt, or one generated once for this study and readable only by its owner."""
    if data.salt:
        return data.salt
    path = places.clients / "salt"
    if not path.exists():
        draft = path.with_name(".salt.part")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    salt = path.read_text(encoding="utf-8").strip()
    if len(salt) < 32:
        raise FdamedError("the salt is shorter than 32 characters", str(path), "Remove the file; a new one is made.")
    return salt
