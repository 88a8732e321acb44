"""The Jacobian norms that FedGTST's sources send, by round."""

from __future__ import annotations

import pandas as pd

from fdamed.report.round_charts import charts_section, logged
from fdamed.report.study import Study

NAMES = {
    "norm": "mean reported norm",
    "spread": "variance of the reported norms",
    "guide": "guide norm",
}
"""Statistic of the norms that the sources send -> its name."""


def frame(study: Study) -> pd.DataFrame:
    """The metrics `jacobian/{statistic}` that FedGTST logs."""
    found = logged(study, "jacobian").rename(columns={"name": "statistic"})
    return found[found["statistic"].isin(list(NAMES))][["target", "statistic", "run", "round", "value"]]


def named(target: str, statistic: str) -> tuple[str, str, str, str]:
    name = NAMES[statistic]
    return f"jacobian_{statistic}_{target}", f"{name}, target {target}", f"{name} by round: target {target}", name


SECTION = charts_section(64, "Jacobian statistics", "jacobians", frame, ["target", "statistic"], "run", named)
