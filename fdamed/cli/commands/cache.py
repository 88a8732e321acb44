"""Decode the images of each client, or of one, into a memory-mapped array.

Examples:
    fdamed cache --config config/config.yaml --client edema --workers 4
    fdamed cache --config config/config.yaml
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from fdamed.cli.options import clients_of, print_left_out, read_config, workers_of
from fdamed.core.errors import FdamedError
from fdamed.data.cache import build
from fdamed.pipeline.paths import Places, clinical, rows_in

log = logging.getLogger(__name__)
GROUP = "prepare", 7
PRIVATE = True
OPTIONS = {
    "--config": "",
    "--client": {"required": False, "help": "the client whose images are decoded (default: each in turn)"},
    "--workers": "",
}


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    data, _ = clinical(config)
    clients, workers = clients_of(arguments, config), workers_of(arguments)
    if not Path(data.root).is_dir():
        raise FdamedError("the data root is not a folder", data.root, "Set data.root to the folder of the images.")
    for client in clients:
        folder = Places.of(config).client(client)
        rows = rows_in(folder / "manifest.parquet", "split")
        report = build(rows, folder, data, config.image, workers, f"cache {client}")
        rejected = ", ".join(f"{reason} {count}" for reason, count in sorted(report.rejected.items())) or "none"
        # The log is the client's; what is printed reaches the log of the whole study.
        log.info(f"{client}: {report.images} images, {report.decoded} decoded now, rejected: {rejected}")
        print_left_out(client, report.rejected, config.smallest_cell)
