"""Membership inference: whether the models reveal which patients of one client trained them.

The client attacks each finished model that it contributed to by the loss of its images. Only AUCs and rates leave the
client.

Examples:
    fdamed membership --config config/config.yaml --client edema
    fdamed membership --config config/config.yaml
"""

from __future__ import annotations

import argparse
import logging

import torch

from fdamed.cli.options import clients_of, read_config
from fdamed.core.files import write_json
from fdamed.pipeline.analyses.membership import attack
from fdamed.pipeline.paths import Places, clinical

log = logging.getLogger(__name__)
GROUP = "analyze", 4
PRIVATE = True
OPTIONS = {
    "--config": "",
    "--threads": "",
    "--client": {"required": False, "help": "the client whose patients are attacked (default: each in turn)"},
}


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    clinical(config)
    torch.set_num_threads(arguments.threads)
    for client in clients_of(arguments, config):
        content = attack(config, client)
        path = Places.of(config).root / "membership" / f"{client}.json"
        write_json(path, content)
        attacked = sum(len(t["runs"]) for t in content["targets"].values())
        log.info(f"{attacked} runs attacked with the patients of {client}: {path}")
