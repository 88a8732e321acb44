"""The tracking store: an MLflow server, or a SQLite file with a folder of artifacts beside it.

Artifacts of a local store: MLflow would write the absolute path of this machine into the experiment. Instead the
experiment's location is `mlflow-artifacts:/STUDY` and the files are put where a server started with
`--artifacts-destination {results}/mlflow/artifacts` looks for it, so results/ can be moved or copied as a whole.
"""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fdamed.core.environment import secure
from fdamed.core.errors import FdamedError

PATIENCE = 4.0
"""Seconds to wait for the connection, and again for the first answer."""
FIX = "The runs are safe in files; run the same command again when the tracking server answers."


@dataclass(frozen=True)
class Store:
    """An MLflow URI and, for a local store, the folder of its artifacts."""

    uri: str
    artifacts: Path | None = None


def place(uri: str) -> str:
    """A tracking URI without user, password and query."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


def connect(store: Store) -> Any:
    """An MLflow client; creates a missing database; an unreachable server is an error within seconds."""
    secure()
    parts = urlsplit(store.uri)
    if parts.scheme in {"http", "https"}:
        _answers(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80), place(store.uri))
    elif parts.scheme == "sqlite":
        Path(parts.path.removeprefix("/")).parent.mkdir(parents=True, exist_ok=True)
        # MLflow makes an experiment `Default` in every new database, with the absolute path of the working folder.
        os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = "mlflow-artifacts:/"
    import mlflow

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    mlflow.set_tracking_uri(store.uri)  # the registry looks here for a model's files, whatever its client was given
    return mlflow.MlflowClient(tracking_uri=store.uri)


def _answers(host: str, port: int, where: str) -> None:
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except OSError:
        raise FdamedError("the MLflow tracking server does not answer", where, FIX) from None


def first_answer(client: Any, store: Store, cohort: str) -> None:
    """Send a first request with a short timeout: a port that accepts connections may still never answer."""
    if urlsplit(store.uri).scheme not in {"http", "https"}:
        return
    usual = {key: os.environ[key] for key in ("MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES")}
    os.environ |= {"MLFLOW_HTTP_REQUEST_TIMEOUT": f"{PATIENCE:.0f}", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    try:
        client.get_experiment_by_name(cohort)
    finally:
        os.environ |= usual
