"""Decode the images of one client into a memory-mapped array.

Examples:
    fdamed cache --config config/config.yaml --client edema --workers 4
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from fdamed.cli.options import add_config, read_config
from fdamed.core.errors import FdamedError
from fdamed.pipeline.paths import clinical, rows_in

GROUP = "prepare", 7
PRIVATE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--client", required=True, help="the hospital whose images are decoded")
    parser.add_argument("--workers", type=int, default=None, help="decoding processes (default: the cores at hand)")


def run(arguments: argparse.Namespace) -> None:
    from fdamed.data.cache import build

    config = read_config(arguments)
    data, _ = clinical(config)
    if arguments.client not in config.split.clients:
        raise FdamedError(
            f"there is no hospital {arguments.client!r}",
            ", ".join(map(str, arguments.config)),
            f"Choose one of {', '.join(config.split.clients)}.",
        )
    workers = arguments.workers if arguments.workers is not None else len(os.sched_getaffinity(0))
    if workers < 1:
        raise FdamedError("--workers must be at least 1", "command line", "Leave it out to use all cores.")
    folder = Path(config.results) / config.study / "clients" / arguments.client
    manifest = folder / "manifest.parquet"
    if not manifest.is_file():
        raise FdamedError("the hospital has no manifest yet", str(manifest), "Run `fdamed split` first.")
    root = Path(data.root)
    if not root.is_dir():
        raise FdamedError("the data root is not a folder", str(root), "Set data.root to where the images lie.")
    report = build(
        rows_in(manifest, "split"),
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
