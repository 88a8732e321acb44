"""Sizes and label rates of the hospitals as they may be shown: no small count, none to be worked out from others."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fdamed.core.disclosure import small

SPLITS = ("train", "adapt", "val", "test")
TOTAL = "total"
HIDDEN = "hidden"
"""A total that would give a small count away by subtraction."""


def sizes(cohort: dict[str, Any], smallest: int) -> pd.DataFrame:
    """One row a hospital and split, and one for its total: images, patients, positives, rate; text where hidden."""
    rows = []
    for client, content in cohort["clients"].items():
        cells = [_cells(content, split, smallest) for split in SPLITS]
        rows += [(client, split, *cell) for split, cell in zip(SPLITS, cells, strict=True)]
        totals = [_total([cell[i] for cell in cells]) for i in range(3)]
        rows.append((client, TOTAL, *totals, _rate(totals[0], totals[2])))
    return pd.DataFrame(rows, columns=["hospital", "split", "images", "patients", "positives", "rate"], dtype=object)


def _cells(content: dict[str, Any], split: str, smallest: int) -> tuple[int | str, int | str, int | str, float | str]:
    images, patients = (int(content[k].get(split, 0)) for k in ("images", "patients"))
    few = f"<{smallest}"
    shown_images: int | str = few if small(images, smallest) else images
    shown_patients: int | str = few if small(patients, smallest) or small(images, smallest) else patients
    if content["positives"] is None:  # several classes
        return shown_images, shown_patients, "", ""
    positives = int(content["positives"].get(split, 0))
    # The negatives are images minus positives: either small count hides the positives.
    bare = small(positives, smallest) or small(images - positives, smallest) or small(images, smallest)
    shown_positives: int | str = HIDDEN if bare else positives
    return shown_images, shown_patients, shown_positives, _rate(shown_images, shown_positives)


def _total(values: list[int | str | float]) -> int | str:
    if all(v == "" for v in values):
        return ""
    return HIDDEN if any(isinstance(v, str) for v in values) else sum(int(v) for v in values)


def _rate(images: int | str, positives: int | str) -> float | str:
    if isinstance(images, str) or isinstance(positives, str):
        return "" if positives == "" else HIDDEN
    return round(positives / images, 4) if images else ""


def rejects(rejected: dict[str, int], smallest: int) -> list[tuple[str, str]]:
    """Reason and count, most frequent first; small counts as '<11'."""
    ordered = sorted(rejected.items(), key=lambda item: (-item[1], item[0]))
    return [(reason, f"<{smallest}" if small(n, smallest) else f"{n:,}") for reason, n in ordered]
