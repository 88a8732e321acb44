"""Score finished runs of one target on the test part of one client: all runs and seeds of the study, or some.

Scores and predictions stay in the client's folder.

Examples:
    fdamed evaluate --config config/config.yaml --target edema --client edema
    fdamed evaluate --config config/config.yaml --run gp --target edema --client edema --seeds 0 1 2
"""

from __future__ import annotations

import argparse

import torch

from fdamed.cli.options import read_config
from fdamed.pipeline.clients import resident
from fdamed.pipeline.scoring import score
from fdamed.pipeline.selection import StudyRun, check_known, federated_runs

GROUP = "run", 5
OPTIONS = {
    "--config": "",
    "--run": {"required": False},
    "--target": "",
    "--seeds": {"type": "int", "nargs": "+", "metavar": "SEED", "help": "seeds; without it all"},
    "--client": "the client whose test part is used",
    "--threads": "",
}


def run(arguments: argparse.Namespace) -> None:
    config, client = read_config(arguments), arguments.client
    check_known("client", client, config.split.clients)
    names = [arguments.run_name] if arguments.run_name else federated_runs(config)
    seeds = arguments.seeds or config.seeds
    runs = [StudyRun.federated(config, name, arguments.target, seed) for name in names for seed in seeds]
    torch.set_num_threads(arguments.threads)
    model = resident(config)
    for one in runs:
        score(one, client, model)
