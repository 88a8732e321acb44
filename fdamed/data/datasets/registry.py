"""Layout -> adapter, and what all of them share: the check of the files and of the share that was refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from fdamed.config.datasets import DataSet
from fdamed.core.errors import FdamedError
from fdamed.data.datasets import chexpert, midrc, mimic, nih, table
from fdamed.data.intake import Rejects, inspect

Adapter = Callable[[Any, str, bool, Rejects], pd.DataFrame]

ADAPTERS: dict[str, Adapter] = {
    "chexpert": chexpert.rows,
    "mimic": mimic.rows,
    "midrc": midrc.rows,
    "nih": nih.rows,
    "table": table.rows,
}
"""`layout` of the configuration -> (data, salt, tables_only, rejects) -> rows of the contract."""


def read(data: DataSet, layout: str, salt: str, tables_only: bool, rejects: Rejects) -> pd.DataFrame:
    """The index of a data set; unless `tables_only`, every file was looked at."""
    frame = ADAPTERS[layout](data, salt, tables_only, rejects)
    return frame if tables_only else inspect(frame, Path(data.root), rejects, data.allowed_roots)


def check_share(data: DataSet, kept: int, rejects: Rejects, listed: str) -> None:
    """Raise when nothing is left or more was refused than the configuration allows."""
    refused = rejects.refused()
    reasons = ", ".join(f"{reason} {n}" for reason, n in rejects.counts().items())
    fix = f"{listed} lists each with its reason; data.reject_share (now {data.reject_share:g}) says what is too many."
    if kept == 0:
        raise FdamedError(f"no usable image is left ({reasons or 'the tables are empty'})", data.root, fix)
    if refused > data.reject_share * (kept + refused):
        share = refused / (kept + refused)
        raise FdamedError(f"{share:.1%} of the rows and files were refused: {reasons}", data.root, fix)
