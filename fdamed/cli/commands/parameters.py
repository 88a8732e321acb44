"""Count the parameters of a configuration's models.

Examples:
    fdamed parameters --config config/chexpert.yaml
"""

from __future__ import annotations

import argparse
import json

from fdamed.cli.options import read_config
from fdamed.config.study import Config
from fdamed.models import backbone, heads

GROUP = "prepare", 2
OPTIONS = {"--config": ""}


def run(arguments: argparse.Namespace) -> None:
    print(json.dumps(counts(read_config(arguments))))


def counts(config: Config) -> dict[str, object]:
    """The networks of all clients, and those of each run with auxiliary heads: shared ones are in every network, the
    target's included, private ones at the sources alone."""
    model = sum(p.numel() for p in backbone.build(config.model).parameters())
    clients = len(config.split.clients)
    with_heads = {}
    for name, spec in config.expanded_runs().items():
        if spec.auxiliary:
            own = sum(p.numel() for p in heads.build(config.model, spec.auxiliary.heads).parameters())
            with_heads[name] = clients * model + (clients if spec.auxiliary.share else clients - 1) * own
    return {"clients": clients, "model": model, "total": clients * model, "total_with_heads": with_heads}
