"""Write config/schema.json and the catalog of methods from the code.

Examples:
    fdamed schema
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import fdamed.methods  # noqa: F401  (registers the methods)
from fdamed.classical import registry as rows
from fdamed.config import loader as configfile
from fdamed.core.files import write_text
from fdamed.federation.method import describe

GROUP = "maintain", 2
OPTIONS = {"--out": {"default": "config/schema.json", "help": "where the schema goes"}}


def run(arguments: argparse.Namespace) -> None:
    write_text(configfile.CATALOG, catalog_text())
    configfile.catalog.cache_clear()
    write_text(Path(arguments.out), schema_text())


def catalog_text() -> str:
    return json.dumps(dict(sorted((describe() | rows.describe()).items())), indent=1) + "\n"


def schema_text() -> str:
    return json.dumps(configfile.schema(), indent=1) + "\n"
