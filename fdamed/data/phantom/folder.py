"""A phantom's folder: complete with a note of its settings, or absent; other folders are never touched."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict
from pathlib import Path

from fdamed.config.datasets import Phantom
from fdamed.core.errors import FdamedError
from fdamed.core.files import digest, read_json, write_json, write_text
from fdamed.core.locks import locked
from fdamed.data.phantom.population import Layout, draw_cohort

NOTE = ".phantom.json"
VERSION = 2
"""Raise it when the images or tables of a given configuration change."""

README = """SYNTHETIC DATA - NOT REAL PATIENTS

Every image, name, number, date and label below this folder was drawn by `fdamed phantom` from random numbers.
The folder has the layout of {title}; it contains none of its data.
It serves to try programs, not to learn anything about people or diseases.
"""


def write_folder(phantom: Phantom, layout: Layout, root: Path) -> Path:
    """Write into a folder beside `root`, then move it there; keep what is already right."""
    shifts = {name: asdict(shift) for name, shift in layout.domains.items()}
    settings = phantom.model_dump(mode="json") | {"domains": shifts}
    mark = digest({"version": VERSION, "layout": layout.name, "settings": settings})
    _check_ours(root)
    if _is_current(root, mark):
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    draft = root.parent / f".{root.name}.draft"
    with locked(draft):
        for old in draft.iterdir():
            if old.name != ".lock":
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        layout.write(draw_cohort(phantom, layout), draft)
        write_text(draft / "README.txt", README.format(title=layout.title))
        write_json(draft / NOTE, {"digest": mark, "layout": layout.name, "files": _count(draft), "synthetic": True})
        (draft / ".lock").unlink()
        _check_ours(root)
        if root.exists():
            shutil.rmtree(root)
        draft.rename(root)
    return root


def _is_current(root: Path, mark: str) -> bool:
    """Whether the folder holds a complete phantom with this fingerprint."""
    if not (root / NOTE).is_file():
        return False
    note = read_json(root / NOTE)
    return bool(note["digest"] == mark and note["files"] == _count(root))


def _check_ours(root: Path) -> None:
    """Raise unless the folder is absent, empty or a phantom.

    A phantom has the note, or the README's first line: a workflow deletes the note before it asks for a new phantom.
    """
    readme = root / "README.txt"
    if not root.exists() or (root / NOTE).is_file() or (root.is_dir() and not any(root.iterdir())):
        return
    if readme.is_file() and readme.read_text(encoding="utf-8", errors="replace").startswith(README.splitlines()[0]):
        return
    raise FdamedError(
        "this folder already exists and was not written by `fdamed phantom`; it was not touched",
        str(root),
        "Name another folder in data.root or --out, or remove `phantom` from the configuration to use real data.",
    )


def _count(root: Path) -> int:
    """Files below the folder, without the note and the lock."""
    return sum(len(files) for _, _, files in os.walk(root)) - sum((root / n).exists() for n in (NOTE, ".lock"))
