"""Tags of the experiment that make MLflow's page show its metrics; by default it shows none."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence

from fdamed.config.study import Config
from fdamed.tracking.payload import RUN, listed

VIEW = "fdamed"
"""Name of the shared view in the experiment's tags and in the link to it."""


def link(experiment: str) -> str:
    """The result table's address, after the server's own."""
    return f"/#/experiments/{experiment}/runs?viewStateShareKey={VIEW}&workflowType=machine_learning"


def experiment_tags(config: Config, headline: Sequence[str] = ()) -> dict[str, str]:
    """Note and view of the experiment; `headline`: what the report's headings say.

    The view is an internal format of MLflow: check it at upgrades.
    """
    synthetic = "**Synthetic phantoms: nothing here is about real patients.**\n\n" if config.phantom else ""
    targets = ", ".join(config.split.targets)
    result = "".join(f"**{html.escape(sentence)}**\n\n" for sentence in headline)
    note = (
        f"{result}{synthetic}Hospitals split by {html.escape(config.split.by)}: {listed(config.split.clients)}; "
        f"adapted to: {targets}; seeds: {len(config.seeds)}. `test/` is the target's test part, `comm/mb_out` what "
        "left the hospitals, in MB. Rows are grouped by run and target; open a group to see its seeds."
    )
    groups = ["run", "target"] if len(config.split.targets) > 1 else ["run"]
    columns = ["metrics.`test/auc`", "metrics.`test/acc`"]  # the page sorts them by name and shows few
    view = {
        "searchFilter": f"tags.level = '{RUN}'",
        "orderByKey": columns[0],
        "orderByAsc": False,
        "selectedColumns": [*columns, "params.`method`", "params.`target`", "params.`seed`", "metrics.`val/auc`"],
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "runsPinned": [],
        "runsHidden": [],
        "groupBy": {
            "aggregateFunction": "average",
            "groupByKeys": [{"mode": "param", "groupByData": name} for name in groups],
        },
    }
    return {
        "mlflow.experimentKind": "custom_model_development",
        "mlflow.note.content": note,
        f"mlflow.sharedViewState.{VIEW}": json.dumps(view),
    }
