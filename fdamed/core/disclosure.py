"""Disclosure control: suppresses small counts, spreadsheet formulas, local paths and secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

LOCAL = "(kept local)"
LOCAL_KEYS = {"salt", "root", "allowed_roots", "uri", "weights", "results"}
"""Keys of the configuration whose text names this machine or a secret; data sets add their own."""
PATH = re.compile(r"^(/|~|[A-Za-z]:[\\/]|\\\\|[a-z][a-z0-9+.-]*://)")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\0")


def small(count: int, smallest: int) -> bool:
    """Whether a count could identify persons; zero cannot."""
    return 0 < count < smallest


def hides(n: int, positives: int | None, smallest: int) -> bool:
    """Whether a score over `n` images, `positives` of them positive (None: several classes), must be suppressed."""
    if positives is None:
        return small(n, smallest)
    return small(n, smallest) or small(positives, smallest) or small(n - positives, smallest)


def vague(count: int, smallest: int) -> str:
    """A count as text; a small one only as a range."""
    return f"1 to {smallest - 1}" if small(count, smallest) else f"{count:,}"


def formula_safe(cell: object) -> object:
    """Prefix text that a spreadsheet would evaluate with an apostrophe; numbers stay numbers."""
    return "'" + cell if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def cell_safe(cell: str) -> str:
    """`formula_safe` for CSV files: NUL is escaped, and a lone carriage return starts no row."""
    return str(formula_safe(cell)).replace("\r", " ").replace("\0", "\\0")


def shareable(content: Any, key: str = "") -> Any:
    """A JSON value without secrets, local paths and addresses."""
    if isinstance(content, Mapping):
        return {k: shareable(v, str(k)) for k, v in content.items()}
    if isinstance(content, list | tuple):
        return [shareable(v, key) for v in content]
    hidden = isinstance(content, str) and (key in LOCAL_KEYS or PATH.match(content))
    return LOCAL if hidden else content


def rounded(content: Any, decimals: int = 4) -> Any:
    """A JSON value with all floats rounded."""
    if isinstance(content, dict):
        return {key: rounded(value, decimals) for key, value in content.items()}
    if isinstance(content, list):
        return [rounded(value, decimals) for value in content]
    return round(content, decimals) if isinstance(content, float) else content
