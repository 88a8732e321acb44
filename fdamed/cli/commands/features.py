"""Embed the images of one client with a frozen or trained backbone; the features stay there.

Examples:
    fdamed features --config config/config.yaml --client edema --target edema --seed 0
"""

from __future__ import annotations

import argparse

from fdamed.cli.options import add_client, add_config, add_threads, read_config
from fdamed.config.cross_checks import backbones
from fdamed.config.loader import catalog
from fdamed.pipeline.features import write
from fdamed.pipeline.paths import FROZEN
from fdamed.pipeline.selection import check_known

GROUP = "run", 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_client(parser, "the client whose images are embedded")
    parser.add_argument("--backbone", default=FROZEN, metavar="RUN", help="weights: init (default) or a finished run")
    parser.add_argument("--target", required=True, metavar="CLIENT", help="the target of that run")
    parser.add_argument("--seed", type=int, required=True)
    add_threads(parser)


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    check_known("client", arguments.client, config.split.clients)
    check_known("target", arguments.target, config.split.targets)
    check_known("backbone", arguments.backbone, backbones(config, catalog()))
    check_known("seed", arguments.seed, config.seeds)
    write(config, arguments.client, arguments.backbone, arguments.target, arguments.seed, arguments.threads)
