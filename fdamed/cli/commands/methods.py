"""List the methods with their papers, options and what they send, or explain one.

Examples:
    fdamed methods
    fdamed methods gp
    fdamed methods --json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from fdamed.config.loader import catalog
from fdamed.core.errors import FdamedError, nearest
from fdamed.core.progress import console

GROUP = "prepare", 1
OPTIONS = {"method": {"nargs": "?", "help": "one method, with all of its options and messages"}, "--json": ""}

KINDS = {"float": "number", "int": "whole number", "bool": "true, false", "str": "text"}


def run(arguments: argparse.Namespace) -> None:
    known, name = catalog(), arguments.method
    if name and name not in known:
        what = f"unknown method `{name}`{nearest(name, known)}"
        raise FdamedError(what, "fdamed methods", "`fdamed methods` lists all methods.")
    chosen = {name: known[name]} if name else known
    if arguments.json:
        print(json.dumps([{"name": name, **entry} for name, entry in chosen.items()], indent=1))
        return
    table = Table("method", "paper", "target labels", "leaves a hospital", "options (default)")
    for method, entry in chosen.items():
        labels = "all" if entry["every_target_label"] else "few" if entry["target_labels"] else "none"
        leaves = sorted({kind for step in entry["wire"] for kind in step["from_hospital"].values()})
        options = ", ".join(f"{k} ({v['default']})" for k, v in entry["options"].items())
        table.add_row(method, entry["paper"], labels, ", ".join(leaves), options or "-")
    console().print(table, *(details(known[name]) if name else ()))


def details(entry: Mapping[str, Any]) -> list[Table]:
    """The options and the messages of a method."""
    options, messages = Table("option", "meaning", "default", "allowed"), Table("step", "to a hospital", "from it")
    for key, about in entry["options"].items():
        low, high = about.get("low"), about.get("high")
        allowed = ", ".join(map(str, about.get("choices", [KINDS.get(about["type"])])))
        allowed += "" if low is None else f", {low} or more" if high is None else f" from {low} to {high}"
        options.add_row(key, about["help"], str(about["default"]), allowed)
    for step in entry["wire"]:
        ways = (step["to_hospital"], step["from_hospital"])
        messages.add_row(step["step"], *(", ".join(f"{field}: {kind}" for field, kind in way.items()) for way in ways))
    return [table for table in (options, messages) if table.row_count]
