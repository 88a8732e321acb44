"""List the methods with their papers, options and what they send.

Examples:
    fdamed methods
    fdamed methods --json
"""

from __future__ import annotations

import argparse
import json

from rich.table import Table

from fdamed.config.loader import catalog
from fdamed.core.progress import console

GROUP = "prepare", 1
OPTIONS = {"--json": ""}


def run(arguments: argparse.Namespace) -> None:
    known = catalog()
    if arguments.json:
        print(json.dumps([{"name": name, **entry} for name, entry in known.items()], indent=1))
        return
    table = Table("method", "paper", "target labels", "leaves a hospital", "options (default)")
    for name, entry in known.items():
        labels = "all" if entry["every_target_label"] else "few" if entry["target_labels"] else "none"
        leaves = sorted({kind for step in entry["wire"] for kind in step["from_hospital"].values()})
        options = ", ".join(f"{k} ({v['default']})" for k, v in entry["options"].items())
        table.add_row(name, entry["paper"], labels, ", ".join(leaves), options or "-")
    console().print(table)
