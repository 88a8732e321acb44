"""Count the parameters of a configuration's models.

Examples:
    fdamed parameters --config config/chexpert.yaml
"""

from __future__ import annotations

import argparse
import json

from fdamed.cli.options import read_config
from fdamed.models import backbone, heads

GROUP = "prepare", 2
OPTIONS = {"--config": ""}


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    model = sum(p.numel() for p in backbone.build(config.model).parameters())
    auxiliary = sum(p.numel() for p in heads.build(config.model).parameters())
    clients = len(config.split.clients)
    counts = {
        "clients": clients,
        "model": model,
        "auxiliary_heads": auxiliary,
        "total": clients * model,
        "total_with_auxiliary": clients * (model + auxiliary),
        "heads": list(config.model.heads),
    }
    print(json.dumps(counts))
