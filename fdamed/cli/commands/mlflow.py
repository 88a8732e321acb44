"""Serve the study's runs in MLflow's pages, on this machine only, until Ctrl-C.

Examples:
    fdamed mlflow
    fdamed mlflow --config config/config.yaml --port 5001
"""

from __future__ import annotations

import argparse
import os
import sys

from fdamed.cli.options import read_config
from fdamed.core.errors import FdamedError
from fdamed.tracking.store import Store, place

GROUP = "analyze", 7
OPTIONS = {"--config": "", "--port": {"type": "int", "default": 5000, "help": "default: 5000"}}


def run(arguments: argparse.Namespace) -> None:
    store = Store.of(read_config(arguments))
    if store.database is None:
        raise FdamedError("the runs are on a server of their own", place(store.uri), "Open its address in a browser.")
    if not store.database.is_file():
        raise FdamedError("there is no MLflow database yet", str(store.database), "Run `fdamed run` first.")
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    options = ["--host", "127.0.0.1", "--port", str(arguments.port), "--workers", "1"]
    options += ["--backend-store-uri", store.uri, "--artifacts-destination", str(store.artifacts)]
    command = [sys.executable, "-m", "mlflow", "server", *options]
    os.execv(command[0], command)  # noqa: S606 - no shell: signals reach it directly
