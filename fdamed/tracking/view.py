"""How MLflow's page shows a study: the experiment's tags. Out of the box it would show no metric at all."""

from __future__ import annotations

import json
from typing import Any

from fdamed.tracking.content import RUN

VIEW = "fdamed"
"""Name of the shared view in the experiment's tags and in the link to it."""


def link(experiment: str) -> str:
    """The result table's address, after the server's own."""
    return f"/#/experiments/{experiment}/runs?viewStateShareKey={VIEW}&workflowType=machine_learning"


def experiment_tags(note: str) -> dict[str, str]:
    return {
        "mlflow.experimentKind": "custom_model_development",
        "mlflow.note.content": note,
        f"mlflow.sharedViewState.{VIEW}": json.dumps(_view()),
    }


def _view() -> dict[str, Any]:
    """What the page shows first: scores by method, seeds grouped. An internal format: check it at upgrades."""
    groups = [{"mode": "param", "groupByData": name} for name in ("run", "target")]
    columns = ["metrics.`test/auc`", "metrics.`test/acc`", "metrics.`comm/mb_out`", "metrics.`runtime/seconds`"]
    return {
        "searchFilter": f"tags.level = '{RUN}'",
        "orderByKey": columns[0],
        "orderByAsc": False,
        "selectedColumns": [*columns, "params.`method`", "params.`target`", "params.`seed`"],
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "runsPinned": [],
        "runsHidden": [],
        "groupBy": {"aggregateFunction": "average", "groupByKeys": groups},
    }
