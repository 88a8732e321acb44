"""No command imports what it does not use: the heavy libraries that its module loads, read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "fdamed"
NEVER = {"monai", "mlflow", "matplotlib", "onnx", "onnxruntime", "opacus", "sympy", "h5py", "openpyxl"}
"""Loaded where they are used, and nowhere else."""
LEARNING, TABLES, PICTURES, PAGES = {"torch"}, {"pandas"}, {"pydicom", "PIL"}, {"jinja2", "rich"}
STATISTICS = {"sklearn", "scipy"}
ABSENT = {
    "phantom": LEARNING | PAGES | {"sklearn"},
    "ingest": LEARNING | STATISTICS | PICTURES | PAGES,
    "split": LEARNING | STATISTICS | PICTURES | PAGES,
    "cache": LEARNING | STATISTICS | PICTURES | PAGES,
    "leakage": LEARNING | PICTURES | PAGES | {"sklearn"},
    "partition": LEARNING | STATISTICS | PICTURES | PAGES,
    "init": TABLES | STATISTICS | PICTURES | PAGES,
    "federate": TABLES | STATISTICS | PICTURES | PAGES,
    "evaluate": STATISTICS | PICTURES | PAGES,
    "features": STATISTICS | PICTURES | PAGES,
    "membership": STATISTICS | PICTURES | PAGES,
    "attributes": STATISTICS | PICTURES | PAGES,
    "advise": PICTURES | PAGES | {"sklearn"},
    "audit": LEARNING | STATISTICS | PICTURES | PAGES,
    "report": LEARNING | STATISTICS | PICTURES | {"rich"},
    "track": LEARNING | TABLES | STATISTICS | PICTURES | PAGES,
    "status": LEARNING | TABLES | STATISTICS | PICTURES | {"jinja2"},
    "run": LEARNING | TABLES | STATISTICS | PICTURES | PAGES,
}
"""Command -> what importing it must not load."""


def loaded(name: str) -> set[str]:
    """The top-level packages that importing a module of fdamed loads directly or through other modules of fdamed."""
    ahead, seen, found = [name], set[str](), set[str]()
    while ahead:
        module = ahead.pop()
        if module in seen or not (parts := imported(module)):
            continue
        seen.add(module)
        found |= {part.split(".")[0] for part in parts}
        ahead += [part for part in parts if part.startswith("fdamed")]
    return found - {"fdamed"}


@cache
def imported(name: str) -> tuple[str, ...]:
    """What a module of fdamed imports when it is loaded, with the packages it lies in; nothing if there is none."""
    place = PACKAGE.joinpath(*name.split(".")[1:])
    file = next((p for p in (place.with_suffix(".py"), place / "__init__.py") if p.is_file()), None)
    if file is None:
        return ()
    parts = name.split(".")
    packages = [".".join(parts[:k]) for k in range(1, len(parts))]
    return (*packages, name, *_at_load(ast.parse(file.read_text(encoding="utf-8")).body))


def _at_load(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Try | ast.With):
            yield from _at_load(node.body)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from _at_load([*node.body, *node.orelse])


@pytest.mark.parametrize("command", ABSENT)
def test_a_command_does_not_load_what_it_does_not_use(command: str) -> None:
    assert not loaded(f"fdamed.cli.commands.{command}") & (ABSENT[command] | NEVER)


def test_decoding_an_image_loads_torch_but_not_monai() -> None:
    found = loaded("fdamed.data.transforms")
    assert "torch" in found and not found & (NEVER | TABLES | STATISTICS)


def test_the_source_shows_what_python_loads() -> None:
    code = "import sys, fdamed.cli.main, fdamed.cli.commands.federate; print(*sys.modules)"
    there = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
    assert loaded("fdamed.cli.commands.federate") <= there
    assert not there & (ABSENT["federate"] | NEVER)
