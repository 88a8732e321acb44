"""Measure how fast this machine trains, in about a minute; the output can be pasted into an issue.

Local training of the study's network on random images, beside a loop written by hand (ratio 1: as fast as that), the
peak memory, and how long the whole study would train at this speed.

Examples:
    fdamed bench --config config/config.yaml
    fdamed bench --config config/chexpert.yaml --seconds 20 --json
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

import torch

from fdamed import __version__
from fdamed.cli.commands.run import duration
from fdamed.cli.options import print_json, read_config
from fdamed.config.loader import catalog
from fdamed.pipeline.devices import device, facts
from fdamed.pipeline.speed import images_to_train, measure

GROUP = "prepare", 4
OPTIONS = {
    "--config": "",
    "--seconds": {"type": "float", "default": 50.0, "help": "how long to measure (default: 50)"},
    "--threads": "",
    "--json": "",
}


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    torch.set_num_threads(arguments.threads)
    where = torch.device(device(config))
    speed, train = measure(config, where, arguments.seconds), config.train
    found = {
        "fdamed": __version__,
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": arguments.threads,
        **facts(config, train.precision),
        "precision": train.precision,
        "network": config.model.backbone,
        "size": config.image.size,
        "batch": train.source.batch,
        **asdict(speed),
        "study": config.study,
        "images_to_train": images_to_train(config, catalog()),
    }
    if arguments.json:
        print_json(found)
        return
    for name, value in found.items():
        print(f"{name:<18} {value}")
    if found["images_to_train"]:
        taken = duration(int(found["images_to_train"]) / speed.images_per_s)
        print(f"one job at a time, local training alone would take at most about {taken} on this device")
