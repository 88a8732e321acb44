"""Data frames as CSV text."""

from __future__ import annotations

import pandas as pd

from fdamed.core.disclosure import cell_safe


def to_csv(frame: pd.DataFrame) -> str:
    """CSV in which no cell is a formula; numbers keep six digits."""
    safe = frame.rename(columns=lambda c: cell_safe(str(c)))
    for column in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[column]):
            safe[column] = safe[column].map(lambda v: cell_safe(v) if isinstance(v, str) else v)
    return safe.to_csv(index=False, float_format="%.6g", lineterminator="\n")
