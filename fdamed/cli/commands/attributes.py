"""Attribute inference: how well sex, age, race and view can be predicted from the features.

One pass over at most `audit.images` images of the target with each finished model, and with the initial weights.
Features and predictions for single images are not written; only AUCs with intervals leave the client.

Examples:
    fdamed attributes --config config/config.yaml --target edema
"""

from __future__ import annotations

import argparse
import logging

import torch

from fdamed.cli.options import read_config
from fdamed.core.files import write_json
from fdamed.pipeline.analyses.attributes import infer
from fdamed.pipeline.paths import Places
from fdamed.pipeline.selection import check_known

log = logging.getLogger(__name__)
GROUP = "analyze", 3
PRIVATE = True
OPTIONS = {"--config": "", "--target": "the client whose images are embedded", "--threads": ""}


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    check_known("target", arguments.target, config.split.targets)
    torch.set_num_threads(arguments.threads)
    content = infer(config, arguments.target)
    path = Places.of(config).root / "attributes" / f"{arguments.target}.json"
    write_json(path, content)
    log.info(f"{len(content['attributes'])} attributes: {path}")
