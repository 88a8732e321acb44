"""The digest of the source of training: whatever a training runs is in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from fdamed.stages.federate import TRAINING

PACKAGE = Path(__file__).resolve().parents[2] / "fdamed"
OUTSIDE = {
    "__init__.py": "the version, which a checkpoint must fit by itself",
    "configfile.py": "reads and refuses configurations; what was read has a digest",
    "insisting.py": "refuses configurations",
    "plain_data.py": "reads YAML",
    "cuts.py": "decides the data, which have a digest",
    "datasets.py": "decides the data, which have a digest",
    "disclosure.py": "words of messages",
    "errors.py": "words of messages",
    "progress.py": "the bar on the terminal",
    "files.py": "writes bytes as they are",
    "stages/places.py": "paths and arguments of commands",
}
"""Modules that a training imports and that decide none of its bits -> why."""


def imported(file: Path) -> Iterator[Path]:
    """The modules of the package that a file names in any import, also inside functions."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for first, *rest in (name.split(".") for name in names):
            place = PACKAGE.joinpath(*rest)
            if first == "fdamed":
                yield from (p for p in (place.with_suffix(".py"), place / "__init__.py") if rest and p.is_file())
    if file.parent != PACKAGE:
        yield file.parent / "__init__.py"


def closure(start: Path, without: set[str]) -> set[str]:
    """All modules behind one, by their paths in the package; behind those of `without` nobody looks."""
    found, ahead = {start}, [start]
    while ahead:
        for file in set(imported(ahead.pop())) - found:
            found.add(file)
            if file.relative_to(PACKAGE).as_posix() not in without:
                ahead.append(file)
    return {file.relative_to(PACKAGE).as_posix() for file in found}


def test_every_module_behind_a_training_is_in_its_digest_or_has_a_reason_not_to_be() -> None:
    behind = closure(PACKAGE / "stages/phases.py", set(OUTSIDE))
    assert {"federation/loop.py", "methods/gp.py", "private.py", "config.py", "guards.py"} <= behind
    inside = {m for m in behind if m in TRAINING or any(m.startswith(f"{part}/") for part in TRAINING)}
    empty = {m for m in behind if not (PACKAGE / m).read_text().strip()}
    assert behind - inside - empty - set(OUTSIDE) == set()


def test_what_the_digest_of_training_names_is_there_and_no_exception_is_idle() -> None:
    assert [part for part in TRAINING if not (PACKAGE / part).exists()] == []
    assert set(OUTSIDE) - {"__init__.py"} <= closure(PACKAGE / "stages/phases.py", set())
