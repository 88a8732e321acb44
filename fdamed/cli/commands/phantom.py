"""Write synthetic chest radiographs in the layout of a real data set.

Examples:
    fdamed phantom --config config/config.yaml
"""

from __future__ import annotations

import argparse

from fdamed.cli.options import add_config, read_config
from fdamed.config.datasets import Phantom
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.pipeline.paths import clinical

GROUP = "prepare", 4
LAYOUTS = ("chexpert", "mimic", "midrc")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--out", metavar="ROOT", help="folder to write; default: data.root of the configuration")


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    phantom = _settings(config, ", ".join(arguments.config))
    from fdamed.data.phantom import write

    layout = config.data.layout
    root = write(phantom, layout, arguments.out or clinical(config)[0].root)
    print(f"phantom: {layout} tree in {root}")


def _settings(config: Config, where: str) -> Phantom:
    if config.data.layout not in LAYOUTS:
        raise FdamedError(
            f"no phantom can be written in the layout `{config.data.layout}`",
            where,
            f"Set data.layout to one of: {', '.join(LAYOUTS)}.",
        )
    if config.phantom is None:
        raise FdamedError(
            "the configuration has no `phantom`: its data is meant to be real",
            where,
            "Add `phantom: {patients: 600}`, or leave this step out.",
        )
    return config.phantom
