"""Which state of the source a result was made with."""

from __future__ import annotations

import shutil
import subprocess
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
