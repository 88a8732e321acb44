"""Compare the runs of a target on the same patients, by subgroup and by calibration.

It runs inside the target client; only differences, and the scores and calibration of groups and bins that are large
enough, leave it.

Examples:
    fdamed audit --config config/config.yaml --target edema
"""

from __future__ import annotations

import argparse
import logging

from fdamed.cli.options import read_config
from fdamed.core.files import write_json
from fdamed.pipeline.analyses.comparison import compare
from fdamed.pipeline.paths import Places
from fdamed.pipeline.selection import check_known

log = logging.getLogger(__name__)
GROUP = "analyze", 2
PRIVATE = True
OPTIONS = {"--config": "", "--target": "the hospital whose predictions are compared"}


def run(arguments: argparse.Namespace) -> None:
    config, target = read_config(arguments), arguments.target
    check_known("target", target, config.split.targets)
    content = compare(config, target)
    path = Places.of(config).root / "audit" / f"{target}.json"
    write_json(path, content)
    log.info(f"{len(content['pairs'])} pairs, {len(content['groups'])} groups: {path}")
