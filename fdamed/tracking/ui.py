"""Tags of the experiment that make MLflow's page show its metrics; by default it shows none."""

from __future__ import annotations

import json
from typing import Any

from fdamed.tracking.payload import RUN

VIEW = "fdamed"
"""Name of the shared view in the experiment's tags and in the link to it."""


def link(experiment: str) -> str:
    """The result table's address, after the server's own."""
    return f"/#/experiments/{experiment}/runs?viewStateShareKey={VIEW}&workflowType=machine_learning"


def experiment_tags(note: str, targets: int) -> dict[str, str]:
    """Note and view of the experiment; with several targets the table groups by them, too."""
    return {
        "mlflow.experimentKind": "custom_model_development",
        "mlflow.note.content": note,
        f"mlflow.sharedViewState.{VIEW}": json.dumps(_view(targets)),
    }


def _view(targets: int) -> dict[str, Any]:
    """What the page shows first: scores by method, seeds grouped. An internal format: check it at upgrades."""
    groups = [{"mode": "param", "groupByData": name} for name in ("run", "target")[: 1 + (targets > 1)]]
    columns = ["metrics.`test/auc`", "metrics.`test/acc`"]  # the page sorts them by name and shows few
    return {
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
        "groupBy": {"aggregateFunction": "average", "groupByKeys": groups},
    }
