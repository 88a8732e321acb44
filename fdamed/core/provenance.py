"""Which state of the source a result was made with: the commit, and a digest of the code that can change the result."""

from __future__ import annotations

import ast
import hashlib
import shutil
import subprocess
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]
NO_RESULT = (
    "fdamed",
    "fdamed.core.counts",
    "fdamed.core.disclosure",
    "fdamed.core.environment",
    "fdamed.core.errors",
    "fdamed.core.files",
    "fdamed.core.progress",
    "fdamed.core.signals",
    "fdamed.config.cross_checks",
    "fdamed.config.error_texts",
    "fdamed.config.loader",
    "fdamed.config.policy_checks",
    "fdamed.methods",
    "fdamed.pipeline.checks.plan",
    "fdamed.pipeline.checks.power",
    "fdamed.pipeline.fingerprint",
    "fdamed.pipeline.paths",
    "fdamed.pipeline.selection",
)
"""Modules that read, write, refuse or report, and change no number: they and what they import are in no digest."""


@cache
def commit() -> str | None:
    """The commit of the checkout that fdamed runs from, with `-dirty` where files differ; None: it is no checkout."""
    source = PACKAGE.resolve().parent
    git = shutil.which("git")
    if git is None or not (source / ".git").exists():
        return None
    words = [git, "-C", str(source), "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except subprocess.TimeoutExpired:
        return None
    return found.stdout.strip() or None


def digest_code(*modules: str, without: Collection[str] = ()) -> str:
    """Twelve hex digits of the syntax trees of these modules and of all modules of fdamed that they import.

    Comments, docstrings and the places of files are not in it: an edited comment or a moved module changes nothing.
    `without`: modules or packages that are left out, besides NO_RESULT, with what only they import.
    """
    trees = sorted(tree_of(name)[0] for name in code_behind(*modules, without=without))
    return hashlib.sha256("".join(trees).encode()).hexdigest()[:12]


def code_behind(*modules: str, without: Collection[str] = ()) -> set[str]:
    """The names of the modules that `digest_code` covers; a package stands for all modules in it."""
    ahead = [name for module in modules for name in _inside(module)]
    found = set(ahead)
    while ahead:
        for name in tree_of(ahead.pop())[1] - found:
            if name not in NO_RESULT and not any(name == w or name.startswith(f"{w}.") for w in without):
                found.add(name)
                ahead.append(name)
    return found


@cache
def digest_package() -> str:
    """Twelve hex digits of the whole package: all code, and the templates and tables that come with it."""
    trees = [tree_of(name)[0] for name in sorted(_inside("fdamed"))]
    files = sorted(f for ending in ("c", "json", "html", "css", "js", "j2") for f in PACKAGE.rglob(f"*.{ending}"))
    texts = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    return hashlib.sha256("".join(trees + texts).encode()).hexdigest()[:12]


@cache
def tree_of(name: str) -> tuple[str, frozenset[str]]:
    """The digest of a module's syntax tree, and the modules of fdamed that it imports, also inside functions."""
    place = _file(name)
    if place is None:
        raise ModuleNotFoundError(f"fdamed has no module {name}")
    words: list[str] = []
    imported: set[str] = set()
    _read(ast.parse(place.read_text(encoding="utf-8")), words, imported)
    return hashlib.sha256("\n".join(words).encode()).hexdigest(), frozenset(imported)


def _read(node: Any, words: list[str], imported: set[str]) -> None:
    """Append the words of a syntax tree, and the modules of fdamed that it imports.

    Left out: docstrings and other strings that stand alone, imports for type checkers, where fdamed's modules are.
    """
    if isinstance(node, list):
        words.append("[")
        for part in node:
            _read(part, words, imported)
        words.append("]")
    elif not isinstance(node, ast.AST):
        words.append(repr(node))
    elif not _says_nothing(node):
        if isinstance(node, ast.Import):
            imported.update(_modules(*(alias.name for alias in node.names)))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fdamed"):
            imported.update(_modules(str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)))
            node.module = None
        words.append(type(node).__name__)
        for name in node._fields:
            if name != "ctx":  # follows from the place of the node
                _read(getattr(node, name), words, imported)


def _says_nothing(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _modules(*names: str) -> Iterator[str]:
    """The modules of fdamed among these names, and the packages that they are in."""
    for parts in (name.split(".") for name in names):
        if parts[0] == "fdamed":
            yield from (n for k in range(len(parts)) if _file(n := ".".join(parts[: k + 1])))


def _file(name: str) -> Path | None:
    place = PACKAGE.joinpath(*name.split(".")[1:])
    return next((p for p in (place.with_suffix(".py"), place / "__init__.py") if p.is_file()), None)


def _inside(module: str) -> Iterator[str]:
    """The module itself and, where it is a package, every module below it."""
    yield module
    folder = PACKAGE.joinpath(*module.split(".")[1:])
    for file in folder.rglob("*.py") if folder.is_dir() else ():
        parts = file.relative_to(folder).with_suffix("").parts
        yield ".".join((module, *(parts[:-1] if parts[-1] == "__init__" else parts)))
