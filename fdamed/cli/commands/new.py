"""Make a folder of your own for studies: Snakefile, profiles and a commented configuration.

The rules stay in the installed fdamed: its upgrades reach the folder. Configuration and profiles are yours to change.

Examples:
    fdamed new our_study
    fdamed new first_steps --layout demo
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fdamed.core.errors import FdamedError
from fdamed.core.files import write_text
from fdamed.project import FOLDER

GROUP = "prepare", 0
OPTIONS = {
    "folder": {"type": "path", "metavar": "DIRECTORY", "help": "new or empty folder to write"},
    "--layout": {
        "choices": ["table", "chexpert", "mimic", "midrc", "nih", "padchest", "vindr", "demo"],
        "default": "table",
        "help": "which data the configuration is for (default: table, any CSV); demo: phantoms, runs without data",
    },
}
CONFIG = "config/config.yaml"
COPIED = ("profiles/default/config.yaml", "profiles/slurm/config.yaml")
SNAKEFILE = """\
# The rules of the installed fdamed; `snakemake` and `fdamed run` use config/config.yaml unless you name another file.
from fdamed.project import SNAKEFILE

include: SNAKEFILE

rule study:
    default_target: True
    input:
        rules.all.input,
"""
IGNORED = "/data/\n/results/\n/.snakemake/\n"
"""Patients' data and what is made from it must never be committed."""


def run(arguments: argparse.Namespace) -> None:
    folder: Path = arguments.folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FdamedError("the folder is not empty", str(folder), "Name a new one; nothing is overwritten.")
    example = CONFIG if arguments.layout == "demo" else f"config/{arguments.layout}.yaml"
    files = {"Snakefile": SNAKEFILE, ".gitignore": IGNORED, CONFIG: _text(example)}
    for name, text in (files | {name: _text(name) for name in COPIED}).items():
        write_text(folder / name, text)
    if arguments.layout == "demo":
        print(f"Next: cd {folder} && fdamed run")
    else:
        print(f"Next: cd {folder}, edit {CONFIG}, check it with `fdamed doctor`, then `fdamed run`")


def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
