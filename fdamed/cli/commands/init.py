"""Write the initial weights of every seed of a study, or of one, random or pretrained.

Examples:
    fdamed init --config config/config.yaml
    fdamed init --config config/config.yaml --seed 0
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from safetensors.torch import save_file

from fdamed.cli.options import read_config
from fdamed.config.study import Config
from fdamed.core.files import atomic
from fdamed.core.rng import stream
from fdamed.models.backbone import Net, build, initialize, load_pretrained
from fdamed.models.flat import layout_of
from fdamed.pipeline.paths import Places

log = logging.getLogger(__name__)
GROUP = "prepare", 10
OPTIONS = {"--config": "", "--seed": {"required": False}}


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    for seed in config.seeds if arguments.seed is None else (arguments.seed,):
        write(config, seed, Places.of(config).init(seed))


def write(config: Config, seed: int, folder: Path) -> None:
    """Write theta.safetensors: random by seed, or pretrained if the configuration names a file."""
    net = build(config.model)
    initialize(net, stream(seed, "init").torch)
    if config.model.weights and isinstance(net, Net):
        load_pretrained(net, Path(config.model.weights))
        log.info(f"pretrained weights of the whole {config.model.backbone} loaded")
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    with atomic(folder / "theta.safetensors") as draft:
        save_file({s.name: tensors[s.name].detach().contiguous() for s in layout_of(net)}, draft)
