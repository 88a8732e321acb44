"""Which state of the source a result was made with."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


def commit() -> str | None:
    """The commit of the checkout that fdamed runs from, with `-dirty` where files differ; None: it is no checkout."""
    source = Path(__file__).resolve().parents[1]
    git = shutil.which("git")
    if git is None or not (source / ".git").exists():
        return None
    words = [git, "-C", str(source), "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"]
    try:
        told = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except subprocess.TimeoutExpired:
        return None
    return told.stdout.strip() or None


def digest_source(*parts: str) -> str:
    """Twelve hex digits of the package's own source below these files and folders; of none, of all of it."""
    package = Path(__file__).parent
    found = {f for part in parts or (".",) for f in _sources(package / part)}
    h = hashlib.sha256()
    for file in sorted(found):
        content = file.read_bytes()
        h.update(f"{file.relative_to(package).as_posix()}:{len(content)}:".encode() + content)
    return h.hexdigest()[:12]


def _sources(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    for ending in ("*.py", "*.c", "*.json", "*.html", "*.css", "*.js"):
        yield from place.rglob(ending)
