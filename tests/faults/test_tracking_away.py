"""MLflow's server is down or does not answer: the job waits seconds, not minutes, and a later import is the same."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from fdamed.cli.main import main
from tests.faults import studies
from tests.support.run_folders import write_study

STUDY = {"runs": {"fedavg": {}, "gp": {}}, "seeds": [0, 1]}
LIMIT = 10.0
"""Seconds that a server which is away may cost in all."""


@contextmanager
def closed_port() -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    yield port


@contextmanager
def black_hole() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(50)
        yield int(listening.getsockname()[1])


def imported(database: Path) -> list[object]:
    """What MLflow has of the runs, without its own ids and clocks."""
    with sqlite3.connect(database) as db:
        runs = "select run_uuid, name, status, start_time, end_time from runs where lifecycle_stage = 'active'"
        found = []
        for identity, *facts in sorted(db.execute(runs).fetchall(), key=lambda row: row[1]):
            rows = [facts]
            for table, columns in (("params", "key, value"), ("tags", "key, value"), ("metrics", "key, value, step")):
                rows.append(sorted(db.execute(f"select {columns} from {table} where run_uuid = ?", (identity,))))
            found.append(rows)
    return found


def configured(folder: Path, uri: str | None) -> Path:
    """The same study with another address of its server."""
    path = folder / "results" / "demo" / "config.json"
    raw = yaml.safe_load(path.read_text()) | {"tracking": {"uri": uri, "models": False}}
    other = folder / "other.yaml"
    other.write_text(yaml.safe_dump(raw))
    return other


def test_a_silent_port_costs_seconds(tmp_path: Path, capsys) -> None:
    import mlflow  # noqa: F401  (its import is not what is measured)

    write_study(tmp_path, **STUDY)
    with black_hole() as port:
        begin = time.monotonic()
        assert main(["track", "--config", str(configured(tmp_path, f"http://127.0.0.1:{port}"))]) == 2
        assert time.monotonic() - begin < LIMIT
    assert "safe in files" in capsys.readouterr().err


@pytest.mark.faults
@pytest.mark.parametrize("away", [closed_port, black_hole])
def test_a_server_that_is_away_or_silent_costs_seconds_and_nothing_else(tmp_path: Path, capsys, away) -> None:
    write_study(tmp_path, **STUDY)
    whole = tmp_path / "whole"
    write_study(whole, **STUDY)
    assert main(["track", "--config", str(configured(whole, None))]) == 0
    with away() as port:
        begin = time.monotonic()
        assert main(["track", "--config", str(configured(tmp_path, f"http://127.0.0.1:{port}"))]) == 2
        assert time.monotonic() - begin < LIMIT
    stderr = capsys.readouterr().err
    assert "safe in files" in stderr and "same command again" in stderr
    assert main(["track", "--config", str(configured(tmp_path, None))]) == 0
    assert imported(tmp_path / "results/mlflow/mlflow.db") == imported(whole / "results/mlflow/mlflow.db")


@pytest.mark.faults
def test_training_never_waits_for_the_server(tmp_path: Path) -> None:
    with black_hole() as port:
        folder = studies.prepare(tmp_path / "study", tracking={"uri": f"http://127.0.0.1:{port}"})
        assert studies.fdamed(folder, *studies.batch()) == 0
    timing = studies.place_of(folder, "scaffold") / "timing.jsonl"
    assert len(timing.read_text().splitlines()) == 5


@contextmanager
def server(folder: Path, port: int) -> Iterator[None]:
    """A real MLflow server, in a process group of its own."""
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "artifacts"),
    ]  # fmt: skip
    env = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            for _ in range(240):
                with socket.socket() as trial:
                    if trial.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.5)
            time.sleep(2)
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)


@pytest.mark.faults
def test_what_a_server_missed_it_gets_later_in_full(tmp_path: Path, capsys) -> None:
    write_study(tmp_path, **STUDY)
    write_study(tmp_path / "whole", **STUDY)
    with closed_port() as port:
        config = configured(tmp_path, f"http://127.0.0.1:{port}")
        assert main(["track", "--config", str(config)]) == 2
        store = tmp_path / "server"
        store.mkdir()
        with server(store, port):
            assert main(["track", "--config", str(config)]) == 0
            assert "4 runs and the report in MLflow: 5 new" in capsys.readouterr().err
            assert main(["track", "--config", str(config)]) == 0
            assert "5 kept" in capsys.readouterr().err
    assert main(["track", "--config", str(configured(tmp_path / "whole", None))]) == 0
    mine, theirs = imported(store / "mlflow.db"), imported(tmp_path / "whole/results/mlflow/mlflow.db")
    assert mine == theirs
