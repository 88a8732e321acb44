"""Source weights: how much a method weighs each source, by round."""

from __future__ import annotations

import pandas as pd

from fdamed.report.round_charts import charts_section, logged
from fdamed.report.study import Study


def frame(study: Study) -> pd.DataFrame:
    """The metrics `weight/{source}` and `beta/{source}` that a method logs."""
    return logged(study, "weight", "beta").rename(columns={"prefix": "kind", "name": "source"})


def named(run: str, target: str, kind: str) -> tuple[str, str, str, str]:
    title = f"{run}, target {target}"
    return f"{kind}_{run}_{target}", title, f"{kind} of each source by round: {title}", kind


SECTION = charts_section(60, "Source weights", "weights", frame, ["run", "target", "kind"], "source", named)
