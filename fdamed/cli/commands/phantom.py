"""Write synthetic chest radiographs in the layout of a real data set.

Examples:
    fdamed phantom --config config/config.yaml
"""

from __future__ import annotations

import argparse

from fdamed.cli.options import read_config
from fdamed.core.errors import FdamedError
from fdamed.data.phantom import write
from fdamed.pipeline.paths import clinical

GROUP = "prepare", 4
OPTIONS = {
    "--config": "",
    "--out": {"metavar": "ROOT", "help": "folder to write; default: data.root of the configuration"},
}


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    if config.phantom is None:
        raise FdamedError(
            "the configuration has no `phantom`: its data is meant to be real",
            ", ".join(arguments.config),
            "Add `phantom: {patients: 600}`, or skip this step.",
        )
    root = write(config.phantom, config.data.layout, arguments.out or clinical(config)[0].root)
    print(f"phantom: {config.data.layout} tree in {root}")
