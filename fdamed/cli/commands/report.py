"""Write the tables, the figures and the HTML report of a study.

Examples:
    fdamed report --config config/config.yaml
"""

from __future__ import annotations

import argparse
import logging

from fdamed.cli.options import read_config
from fdamed.config.study import Config
from fdamed.core.disclosure import to_csv
from fdamed.core.files import write_text
from fdamed.core.locks import locked
from fdamed.report import page
from fdamed.report.study import read_study

log = logging.getLogger(__name__)
GROUP = "analyze", 6
OPTIONS = {"--config": ""}


def run(arguments: argparse.Namespace) -> None:
    write(read_config(arguments))


def write(config: Config) -> None:
    """Write the report of a study from its files."""
    study = read_study(config)
    folder = study.folder / "report"
    with locked(folder):
        page.write(study, folder)
        write_text(folder / "what_left_each_hospital.csv", to_csv(study.left))
    absent = f", {len(study.missing)} missing" if study.missing else ""
    log.info("report on %d runs%s: %s", len(study.records), absent, folder / "index.html")
