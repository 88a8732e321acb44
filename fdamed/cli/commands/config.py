"""Explain the keys of a configuration: meaning, allowed values, default and an example.

Without a key, all sections; with a section, its keys. `data.columns` also lists what each column may contain.

Examples:
    fdamed config
    fdamed config split.labeled
    fdamed config data.columns
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.table import Table
from rich.text import Text

from fdamed.config.loader import schema
from fdamed.config.reference import allowed, example_of, examples, meaning, own_keys, sections_of
from fdamed.core.errors import FdamedError, nearest
from fdamed.core.progress import console
from fdamed.project import FOLDER

GROUP = "prepare", 2
OPTIONS = {"key": {"nargs": "?", "default": "", "help": "such as train, split.labeled or runs.gp.warmup"}}
Keys = dict[str, dict[str, Any]]
"""Section -> the schema of a key in it; "" is the top level."""


def run(arguments: argparse.Namespace) -> None:
    known = schema()
    out, shown = console(), examples(known, FOLDER / "config")
    for section, entry in found(known, [part for part in arguments.key.split(".") if part]).items():
        lines = {"values": allowed(entry), "default": _default(entry)}
        lines["example"] = example_of(arguments.key.rpartition(".")[2], entry, shown[section])
        text = [meaning(entry), *(f"{name}: {line}" for name, line in lines.items() if line)]
        out.print(Text(f"{arguments.key}{f' ({section})' if section else ''}", "bold"))
        out.print(Text("\n".join(f"  {line.replace('`', '')}" for line in text)))
        for inner in sections_of(entry):
            out.print(_keys(inner, own_keys(known["$defs"][inner]["properties"])))
    if arguments.key == "data.columns":
        out.print(_columns())
    if not arguments.key:
        out.print(_keys("configuration", known["properties"]))


def found(known: dict[str, Any], path: list[str]) -> Keys:
    """The schema of a key by the sections that have it; a name that the user chose, as of a run, may be left out."""
    here: Keys = {"": {"$ref": "", **known}}
    for number, word in enumerate(path):
        keys = {
            section: known["$defs"][section]["properties"] if section else known["properties"]
            for section in ([""] if not number else [s for entry in here.values() for s in sections_of(entry)])
        }
        named = any("patternProperties" in entry for entry in here.values())
        fitting = {section: entries[word] for section, entries in keys.items() if word in entries}
        if not fitting and named:
            continue
        if not fitting:
            options = sorted({key for entries in keys.values() for key in own_keys(entries)})
            what = f"there is no key `{'.'.join(path[: number + 1])}`{nearest(word, options)}"
            raise FdamedError(what, "fdamed config", f"Keys there: {', '.join(options) or 'none'}.")
        here = fitting
    different = {str(entry): section for section, entry in reversed(here.items())}  # layouts share keys: show one
    return {section: here[section] for section in here if section in different.values()} if path else {}


def _default(entry: dict[str, Any]) -> str:
    """Of a section none: its keys have theirs."""
    return json.dumps(entry["default"]) if "default" in entry and not sections_of(entry) else ""


def _keys(title: str, keys: dict[str, Any]) -> Table:
    table = Table("key", "values", "default", "meaning", title=title)
    for name, entry in keys.items():
        cells = (
            name,
            allowed(entry),
            _default(entry)[:30],
            meaning(entry).replace("See below.", f"`fdamed config {name}`"),
        )
        table.add_row(*(Text(cell.replace("`", "")) for cell in cells))
    return table


def _columns() -> Table:
    from fdamed.data.manifest import COLUMNS
    from fdamed.data.vocabulary import ACCEPTED

    table = Table("column", "accepted values")
    required = {"image": "a path below data.root, required", "patient": "any text, required"}
    for name in (*COLUMNS, "label"):
        accepted = (ACCEPTED | required).get(name, "any text")
        table.add_row("each label" if name == "label" else name, Text(accepted))
    return table
