"""Decode the images of one client into a memory-mapped array.

Examples:
    fdamed cache --config config/config.yaml --client edema --workers 4
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fdamed.cli.options import read_config, workers_of
from fdamed.core.errors import FdamedError
from fdamed.pipeline.paths import Places, clinical, rows_in
from fdamed.pipeline.selection import check_known

GROUP = "prepare", 7
PRIVATE = True
OPTIONS = {"--config": "", "--client": "the client whose images are decoded", "--workers": ""}


def run(arguments: argparse.Namespace) -> None:
    from fdamed.data.cache import build

    config = read_config(arguments)
    data, _ = clinical(config)
    check_known("client", arguments.client, config.split.clients)
    workers = workers_of(arguments)
    folder = Places.of(config).client(arguments.client)
    root = Path(data.root)
    if not root.is_dir():
        raise FdamedError("the data root is not a folder", str(root), "Set data.root to the folder of the images.")
    report = build(
        rows_in(folder / "manifest.parquet", "split"),
        root,
        config.image.size,
        config.image.equalize,
        folder / "images.npy",
        folder / "order.parquet",
        folder / "rejects.csv",
        workers,
        data.reject_share,
        what=f"cache {arguments.client}",
        allowed=data.allowed_roots,
    )
    refused = ", ".join(f"{reason} {count}" for reason, count in sorted(report.refused.items())) or "none"
    print(f"{arguments.client}: {report.images} images, {report.decoded} decoded now, refused: {refused}")
