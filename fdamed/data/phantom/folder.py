"""A phantom's folder: complete with a note of its settings, or absent; other folders are never touched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from fdamed.config.datasets import Phantom
from fdamed.core.errors import FdamedError
from fdamed.core.files import digest, read_json, write_json, write_text
from fdamed.core.locks import locked
from fdamed.data.phantom.profiles import domains

NOTE = ".phantom.json"
VERSION = 1
"""Raise it when the images or tables of a given configuration change."""

README = """SYNTHETIC DATA - NOT REAL PATIENTS

Every image, name, number, date and label below this folder was drawn by `fdamed phantom` from random numbers.
The folder has the layout of {title}; it contains none of its data.
It serves to try programs, not to learn anything about people or diseases.
"""
TITLES = {"chexpert": "CheXpert-v1.0-small", "mimic": "MIMIC-CXR 2.0.0 with MIMIC-IV", "midrc": "a MIDRC export (Gen3)"}


def fingerprint(phantom: Phantom, layout: str) -> str:
    """Twelve hex digits of everything that decides the content."""
    shifts = {name: shift.model_dump() for name, shift in domains(phantom, layout).items()}
    settings = phantom.model_dump(mode="json") | {"domains": shifts}
    return digest({"version": VERSION, "layout": layout, "settings": settings})


def is_current(root: Path, mark: str) -> bool:
    """Whether the folder holds a complete phantom with this fingerprint."""
    note = root / NOTE
    if not note.is_file():
        return False
    content = read_json(note)
    return bool(content["digest"] == mark and content["files"] == _count(root))


def grow(phantom: Phantom, layout: str, root: Path, fill: Callable[[Path], None]) -> Path:
    """Let `fill` write the tree into a folder beside `root`, then move it there; keep what is already right."""
    mark = fingerprint(phantom, layout)
    _check_ours(root)
    if is_current(root, mark):
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    draft = root.parent / f".{root.name}.draft"
    with locked(draft):
        for old in draft.iterdir():
            if old.name != ".lock":
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        fill(draft)
        write_text(draft / "README.txt", README.format(title=TITLES[layout]))
        # The note itself and the lock are the two files that are not counted.
        write_json(draft / NOTE, {"digest": mark, "layout": layout, "files": _count(draft), "synthetic": True})
        (draft / ".lock").unlink()
        _check_ours(root)
        if root.exists():
            shutil.rmtree(root)
        draft.rename(root)
    return root


def _is_ours(root: Path) -> bool:
    """By the note, or by the first line of the README: a workflow deletes the note before it asks for a new phantom."""
    if (root / NOTE).is_file():
        return True
    readme = root / "README.txt"
    return readme.is_file() and readme.read_text(encoding="utf-8", errors="replace").startswith(README.splitlines()[0])


def _check_ours(root: Path) -> None:
    if root.exists() and not _is_ours(root) and not (root.is_dir() and not any(root.iterdir())):
        raise FdamedError(
            "this folder is there already and was not written by `fdamed phantom`; it was not touched",
            str(root),
            "Name another folder in data.root or --out, or remove `phantom` from the configuration to use real data.",
        )


def _count(root: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(root)) - sum((root / n).exists() for n in (NOTE, ".lock"))
