"""The files and tables of each data set; columns.csv lists the real columns of its wide tables."""

from functools import cache
from pathlib import Path

import pandas as pd


@cache
def columns(table: str) -> dict[str, str]:
    """The columns of a real table in their order, each with the value that it has in every row of a phantom."""
    every = pd.read_csv(Path(__file__).with_name("columns.csv"), dtype=str, keep_default_na=False)
    own = every[every["table"] == table]
    return dict(zip(own["column"], own["value"], strict=True))
