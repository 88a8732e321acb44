"""What every process of fdamed sets before it imports anything: no code from files, no telemetry, short waits."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

REQUIRED = {
    "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",  # blocks even an explicit torch.load(..., weights_only=False)
    "MONAI_EVAL_EXPR": "0",  # MONAI's bundles evaluate `$` expressions otherwise
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Settings that nobody may relax."""
FORBIDDEN = ("MONAI_ALLOW_PICKLE", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
"""Settings that would open the door again."""
CHOSEN = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # with MLflow's seven a silent server holds a call for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
}
"""Settings that the environment may already have: a slow server may be given more time."""


def secure(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make the environment of this process and of its children safe; called once, at the start of the command line."""
    environment.update(REQUIRED)
    for name in FORBIDDEN:
        environment.pop(name, None)
    for name, value in CHOSEN.items():
        environment.setdefault(name, value)
