"""The counts of a study: in full below `clients/`, their public part outside, and what views may show of them."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

from fdamed.core.disclosure import hides_flow, outside, released_counts, released_reasons, released_total
from fdamed.core.files import read_json, write_json

Counts = dict[str, Any]
"""`images`, `patients` and `positives` (None: several classes) of a client, each by part."""
COHORT, COUNTS = "cohort.json", "counts.json"


def write_counts(root: Path, name: str, content: Counts) -> None:
    """Write ingest.json, cohort.json or leakage.json: full below `clients/`, what is public outside.

    The counts of a client go to its own folder.
    """
    full = dict(content)
    for client, counts in full.pop("clients", {}).items():
        write_json(root / "clients" / client / COUNTS, counts)
    write_json(root / "clients" / name, full)
    write_json(root / name, outside(name, content))


def counts_of(root: Path, client: str) -> Counts:
    """The full counts of a client; empty if they are not known."""
    path = root / "clients" / client / COUNTS
    return dict(read_json(path)) if path.is_file() else {}


def study_counts(root: Path, name: str) -> Counts:
    """The full counts in a file of the study as a whole; empty if they are not known."""
    path = root / "clients" / name
    return dict(read_json(path)) if path.is_file() else {}


def released_cohort(root: Path, smallest: int) -> Counts:
    """cohort.json with the counts of its clients as they may be shown; None: held back."""
    cohort: Counts = read_json(root / COHORT)
    clients = {client: public | counts_of(root, client) for client, public in cohort["clients"].items()}
    return cohort | {"clients": {client: released_counts(counts, smallest) for client, counts in clients.items()}}


def flows(root: Path, smallest: int) -> dict[str, dict[str, Any]]:
    """Client -> from its rows to its images, as it may be shown: None where a count is held back.

    `rows`, `left_out` by reason, `images` that the split took, and `unreadable` by reason when they were decoded.
    """
    whole = study_counts(root, COHORT)
    left_out = whole.get("left_out") or {}
    counts = {client: counts_of(root, client) for client in left_out}
    hidden = hides_flow(left_out, counts, whole.get("by"), smallest)
    return {
        client: {
            "rows": None if client in hidden else whole["rows"][client],
            "left_out": dict.fromkeys(reasons) if client in hidden else reasons,
            "images": released_total(counts[client], "images", smallest),
            "unreadable": released_reasons(_unreadable(root / "clients" / client / "rejects.csv"), smallest),
        }
        for client, reasons in left_out.items()
    }


def _unreadable(path: Path) -> dict[str, int]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return dict(sorted(Counter(line["reason"] for line in csv.DictReader(lines)).items()))
