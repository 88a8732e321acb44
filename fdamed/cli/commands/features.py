"""Embed the images of one client with a frozen or trained backbone; the features stay there.

Examples:
    fdamed features --config config/config.yaml --client edema --target edema --seed 0
"""

from __future__ import annotations

import argparse

from fdamed.cli.options import read_config
from fdamed.config.cross_checks import backbones
from fdamed.config.loader import catalog
from fdamed.pipeline.features import write
from fdamed.pipeline.selection import check_known

GROUP = "run", 3
OPTIONS = {
    "--config": "",
    "--client": "the client whose images are embedded",
    "--backbone": {"default": "init", "metavar": "RUN", "help": "weights: init (default) or a finished run"},
    "--target": "the target of that run",
    "--seed": "",
    "--threads": "",
}


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    check_known("client", arguments.client, config.split.clients)
    check_known("target", arguments.target, config.split.targets)
    check_known("backbone", arguments.backbone, backbones(config, catalog()))
    check_known("seed", arguments.seed, config.seeds)
    write(config, arguments.client, arguments.backbone, arguments.target, arguments.seed, arguments.threads)
