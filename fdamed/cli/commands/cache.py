"""Decode the images of one client into a memory-mapped array.

Examples:
    fdamed cache --config config/config.yaml --client edema --workers 4
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fdamed.cli.options import read_config, workers_of
from fdamed.core.errors import FdamedError
from fdamed.data.cache import build
from fdamed.pipeline.paths import Places, clinical, rows_in
from fdamed.pipeline.selection import check_known

GROUP = "prepare", 7
PRIVATE = True
OPTIONS = {"--config": "", "--client": "the client whose images are decoded", "--workers": ""}


def run(arguments: argparse.Namespace) -> None:
    config, client = read_config(arguments), arguments.client
    data, _ = clinical(config)
    check_known("client", client, config.split.clients)
    workers, folder = workers_of(arguments), Places.of(config).client(client)
    if not Path(data.root).is_dir():
        raise FdamedError("the data root is not a folder", data.root, "Set data.root to the folder of the images.")
    rows = rows_in(folder / "manifest.parquet", "split")
    report = build(rows, folder, data, config.image, workers, f"cache {client}")
    rejected = ", ".join(f"{reason} {count}" for reason, count in sorted(report.rejected.items())) or "none"
    print(f"{client}: {report.images} images, {report.decoded} decoded now, rejected: {rejected}")
