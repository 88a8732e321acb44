"""Choose one candidate of a tuned run for one target and seed, on validation images; its files become the run's.

Examples:
    fdamed choose --config config/config.yaml tuned.yaml --run gp_tuned --target edema --seed 0
"""

from __future__ import annotations

import argparse
import logging

import torch

from fdamed.cli.options import read_config
from fdamed.core.locks import locked
from fdamed.pipeline.clients import resident
from fdamed.pipeline.selection import StudyRun
from fdamed.pipeline.tuning.choice import choose

GROUP = "run", 3
OPTIONS = {"--config": "", "--run": "", "--target": "", "--seed": "", "--threads": ""}
log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> None:
    one = StudyRun.federated(read_config(arguments), arguments.run_name, arguments.target, arguments.seed)
    torch.set_num_threads(arguments.threads)
    with locked(one.folder):
        log.info(f"{one.key}: {choose(one, resident(one.config))} is chosen")
