"""What may be shown: small counts, spreadsheet formulas and local paths stay inside."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

LOCAL = "(kept local)"
SECRET = frozenset({"salt", "root", "allowed_roots", "uri", "demographics", "mimic_iv", "table", "weights", "results"})
"""Keys of the configuration whose text names this machine or a secret."""
PATH = re.compile(r"^(/|~|[A-Za-z]:[\\/]|\\\\|[a-z][a-z0-9+.-]*://)")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\0")


def small(count: int, smallest: int) -> bool:
    """A count that could point at persons; zero points at nobody."""
    return 0 < count < smallest


def hides(n: int, positives: int | None, smallest: int) -> bool:
    """Whether a score over `n` images, `positives` of them positive (None: several classes), is not to be shown."""
    if positives is None:
        return small(n, smallest)
    return small(n, smallest) or small(positives, smallest) or small(n - positives, smallest)


def counts(cells: Sequence[int], smallest: int) -> list[int | None]:
    """The cells and their total, None where hidden; the total goes too where it would give a hidden cell away."""
    shown: list[int | None] = [None if small(c, smallest) else c for c in cells]
    return [*shown, None if None in shown else sum(cells)]


def vague(count: int, smallest: int) -> str:
    """A count in words that never tells a small one."""
    return f"1 to {smallest - 1}" if small(count, smallest) else f"{count:,}"


def formula_safe(cell: object) -> object:
    """Text that a spreadsheet would run gets a leading apostrophe; numbers stay numbers."""
    return "'" + cell if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def cell_safe(cell: str) -> str:
    """`formula_safe` for files with a reader of their own: NUL is written out, a lone return starts no row."""
    return str(formula_safe(cell.replace("\r", " "))).replace("\0", "\\0")


def shareable(content: Any, key: str = "") -> Any:
    """A configuration or any JSON value without secrets, paths of this machine and addresses."""
    if isinstance(content, Mapping):
        return {k: shareable(v, str(k)) for k, v in content.items()}
    if isinstance(content, list | tuple):
        return [shareable(v, key) for v in content]
    hidden = isinstance(content, str) and (key in SECRET or PATH.match(content))
    return LOCAL if hidden else content


def rounded(content: Any, decimals: int = 4) -> Any:
    """A JSON value with all floats rounded."""
    if isinstance(content, dict):
        return {key: rounded(value, decimals) for key, value in content.items()}
    if isinstance(content, list):
        return [rounded(value, decimals) for value in content]
    return round(content, decimals) if isinstance(content, float) else content
