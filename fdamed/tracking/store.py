"""The tracking store: an MLflow server, or a SQLite file with a folder of artifacts beside it.

Artifacts of a local store: MLflow would write the absolute path of this machine into the experiment. Instead the
experiment's location is `mlflow-artifacts:/STUDY` and the files are put where a server started with
`--artifacts-destination {results}/mlflow/artifacts` looks for it, so results/ can be moved or copied as a whole.
"""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fdamed.config.study import Config
from fdamed.core.environment import secure
from fdamed.core.errors import FdamedError

PATIENCE = 4.0
"""Seconds to wait for the connection, and again for the first answer."""
FIX = "The runs are safe in files; run the same command again when the tracking server answers."
LOCAL = "sqlite:///"
BATCH = 1000
"""Runs, or metrics, per call of MLflow."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Store:
    """An MLflow URI and, for a local store, the folder of its artifacts."""

    uri: str
    artifacts: Path | None = None

    @classmethod
    def of(cls, config: Config) -> Store:
        """The configured store, or a SQLite file and an artifact folder below results/mlflow/."""
        store = cls(config.tracking.uri or f"{LOCAL}{Path(config.results).resolve()}/mlflow/mlflow.db")
        return cls(store.uri, store.database.resolve().parent / "artifacts") if store.database else store

    @property
    def database(self) -> Path | None:
        """The file of a local store."""
        return Path(self.uri.removeprefix(LOCAL)) if self.uri.startswith(LOCAL) else None

    @property
    def remote(self) -> bool:
        """Whether it is a server."""
        return self.uri.startswith(("http://", "https://"))


def place(uri: str) -> str:
    """A tracking URI without user, password and query."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


@contextmanager
def mlflow_errors(store: Store) -> Iterator[None]:
    """Turn the errors of MLflow into one that the user can fix."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, sqlite3.Error, OSError) as error:
        reason = type(error).__name__ if isinstance(error, OSError) else str(error).splitlines()[0][:200]
        shown = place(store.uri)
        raise FdamedError(f"MLflow refused: {reason.replace(store.uri, shown)}", shown, FIX) from None


def connect(store: Store) -> Any:
    """An MLflow client; creates a missing database; a server that does not answer is an error within seconds."""
    secure()
    if store.remote:
        parts = urlsplit(store.uri)
        address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection(address, timeout=PATIENCE).close()
        except OSError:
            raise FdamedError("the MLflow tracking server does not answer", place(store.uri), FIX) from None
    if store.database:
        store.database.parent.mkdir(parents=True, exist_ok=True)
        # MLflow makes an experiment `Default` in every new database, with the absolute path of the working folder.
        os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = "mlflow-artifacts:/"
    import mlflow

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    mlflow.set_tracking_uri(store.uri)  # the registry looks here for a model's files, whatever its client was given
    client = mlflow.MlflowClient(tracking_uri=store.uri)
    if store.remote:  # a port that accepts connections may still never answer
        usual = {key: os.environ[key] for key in ("MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES")}
        os.environ |= {"MLFLOW_HTTP_REQUEST_TIMEOUT": f"{PATIENCE:.0f}", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
        try:
            with mlflow_errors(store):
                client.get_experiment_by_name("Default")
        finally:
            os.environ |= usual
    return client


def found_runs(client: Any, experiment: str, deleted: bool = False) -> Iterator[Any]:
    """All active runs of an experiment, or all deleted ones."""
    from mlflow.entities import ViewType

    kind, token, more = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY, None, True
    while more:
        page = client.search_runs([experiment], run_view_type=kind, max_results=BATCH, page_token=token)
        yield from page
        token = page.token
        more = bool(token)


def forget(store: Store, client: Any, experiment: str) -> None:
    """Remove the deleted runs of ours for good: MLflow only marks them, and they may have what is hidden now.

    Its interface has no call for that. Of a local store this does what `mlflow gc` does, and leaves no trace in the
    file; a server's administrator runs it.
    """
    gone = [run.info.run_id for run in found_runs(client, experiment, deleted=True) if "run_key" in run.data.tags]
    if gone and store.database is None:
        log.warning(f"the server keeps {len(gone)} replaced runs until its administrator runs `mlflow gc`")
    elif gone and store.database:
        from mlflow.tracking._tracking_service.utils import _get_store

        for run in gone:
            _get_store(store.uri)._hard_delete_run(run)
        with closing(sqlite3.connect(store.database, timeout=60)) as database:
            database.execute("VACUUM")
