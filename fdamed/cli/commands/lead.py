"""Lead a study over a network: start its server, wait for the hospitals, train all runs, and write the report.

It resumes after faults. The report is made from what the hospitals let out alone.

Examples:
    fdamed lead --study study.yaml --kits kits
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fdamed.cli.commands import init, report
from fdamed.cli.commands.serve import end, start_kit
from fdamed.config.base import without_defaults
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import private, read_json, read_lines, write_json
from fdamed.core.locks import locked
from fdamed.pipeline import batching
from fdamed.pipeline.hospitals.kits import ALLOWED, LEAD, close_kit
from fdamed.pipeline.hospitals.site import network_study, study_digest
from fdamed.pipeline.paths import Places
from fdamed.pipeline.selection import StudyRun, all_runs

GROUP = "run", 8
OPTIONS = {
    "--study": {"type": "path", "required": True, "metavar": "FILE", "help": "the study's configuration"},
    "--kits": {"type": "path", "metavar": "FOLDER", "help": "what `fdamed invite` made (default: network.kits)"},
    "--runs": {"nargs": "+", "metavar": "RUN/TARGET/SEED", "help": "only these runs, and no report; without it all"},
}
ATTEMPTS = 20
"""Jobs that are submitted, at most, until all runs are done."""
LOOK, PAUSE = 0.5, 10.0
"""Seconds between two looks at a job, and between two jobs at most."""
log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> None:
    config, network = network_study(arguments.study)
    if tuned := [name for name, spec in config.expanded_runs().items() if spec.tune]:
        fix = "Choose the values in a study on one machine, and write them into the run."
        raise FdamedError(f"runs over a network are not tuned: {', '.join(tuned)}", "runs.*.tune", fix)
    places = Places.of(config)
    whole = [one.key for one in all_runs(config) if not one.classical]
    wanted = arguments.runs or whole
    private(places.clients)
    with locked(places.root / "state"):
        for seed in config.seeds:
            if not (places.init(seed) / "theta.safetensors").exists():
                init.write(config, seed, places.init(seed))
        lead(config, (arguments.kits or Path(network.kits)).resolve(), wanted, report=wanted == whole)
    if wanted == whole:
        report.write(config)
    for key in wanted:
        print(f"{key}: {last_scores(StudyRun.federated(config, *batching.key(key)))}")


def last_scores(one: StudyRun) -> str:
    """The scores of a run's last round, as far as the target lets them out."""
    rows = read_lines(one.rounds())
    shown = [f"{name} {value:.3f}" for name, value in (rows[-1] if rows else {}).items() if isinstance(value, float)]
    return ", ".join(shown) or "the target lets no score out"


def lead(config: Config, kits: Path, wanted: list[str], report: bool) -> None:
    """Submit jobs until every run is done and what the report needs is here; each resumes where the last one ended."""
    root, ended = Places.of(config).root, not report
    log.info("study %s, digest %s: %d runs", config.study, study_digest(config), len(wanted))
    with started(kits / "server") as server:
        for attempt in range(1, ATTEMPTS + 1):
            left = [key for key in wanted if not (root / "runs" / key / "done").exists()]
            if not left and ended:
                log.info("all %d runs are done", len(wanted))
                return
            server.ensure()
            with suppress(ConnectionError):
                ended = _one_job(config, kits, left, report, attempt)
            time.sleep(min(PAUSE, LOOK * attempt))
    what = f"{len(left)} of {len(wanted)} runs, or the report, are not done after {ATTEMPTS} jobs"
    raise FdamedError(what, str(root), f"See {root / 'logs'} and {kits / 'server' / 'engine.log'}, and start it again.")


def _one_job(config: Config, kits: Path, runs: list[str], report: bool, attempt: int) -> bool:
    """Submit one job with these runs and wait for its end; whether it has done all of them, and the report's questions.

    Raises ConnectionError if the server is gone.
    """
    root = Places.of(config).root
    ended, shown = root / "state" / f"ended.{secrets.token_hex(4)}.json", root / "logs" / "lead.log"
    shown.parent.mkdir(parents=True, exist_ok=True)
    shown.touch()
    folder = write_job(config, kits / "job", runs, report, ended, shown)
    with session(kits) as flare:
        for other in _checked(flare.list_jobs):  # of a lead that was killed, or a session that broke
            if not str(other.get("status", "")).startswith("FINISHED"):
                log.info("stopping an earlier job")
                with suppress(ConnectionError):
                    _checked(flare.abort_job, other["job_id"])
        wait_for_hospitals(flare, config.split.clients, 60.0 * config.network.wait_minutes)  # type: ignore[union-attr]
        with open(shown, encoding="utf-8") as messages:
            messages.seek(0, os.SEEK_END)
            job = _checked(flare.submit_job, str(folder))
            log.info("job %d: %s", attempt, ", ".join((*runs, *["report"] * report)))
            while not str(_checked(flare.get_job_meta, job).get("status", "")).startswith("FINISHED"):
                _show(messages.read())
                time.sleep(LOOK)
            _show(messages.read())
    if not ended.exists():
        log.warning("the job ended before its runs; it is submitted again and resumes")
        return False
    failed = read_json(ended)["failed"]
    ended.unlink()
    if failed:
        raise FdamedError(
            "a run or the report has failed", str(shown), f"The reason is above: {failed.splitlines()[0]}"
        )
    return True


def _show(text: str) -> None:
    for line in text.splitlines():
        log.info("%s", line)


def write_job(config: Config, folder: Path, runs: list[str], report: bool, ended: Path, shown: Path) -> Path:
    """The folder of a job: it names fdamed's own classes, and brings no code."""
    study = folder / "study.json"
    write_json(study, without_defaults(config) | {"results": str(Path(config.results).resolve())})
    names = [str(path.resolve()) for path in (study, ended, shown)]
    loop = {"config": names[0], "runs": runs, "report": report, "ended": names[1], "shown": names[2]}
    clients = list(config.split.clients)
    meta: dict[str, Any] = {"name": config.study, "resource_spec": {}, "deploy_map": {"app": ["@ALL"]}}
    meta |= {"min_clients": len(clients), "mandatory_clients": clients}
    write_json(folder / "meta.json", meta)
    server = {"format_version": 2, "workflows": [{"id": "loop", "path": ALLOWED["server"][0], "args": loop}]}
    executor = {"path": ALLOWED["client"][0], "args": {}}
    client = {"format_version": 2, "executors": [{"tasks": ["*"], "executor": executor}], "components": []}
    write_json(folder / "app" / "config" / "config_fed_server.json", server | {"components": []})
    write_json(folder / "app" / "config" / "config_fed_client.json", client)
    return folder


def wait_for_hospitals(flare: Any, clients: Iterable[str], seconds: float) -> None:
    """Wait until every hospital of the study is there; who is there is shown when it changes."""
    end, shown = time.monotonic() + seconds, None
    while True:
        there = sorted(client.name for client in _checked(flare.get_system_info).client_info)
        missing = sorted(set(clients) - set(there))
        if there != shown:
            log.info("here: %s%s", ", ".join(there) or "nobody", f"; missing: {', '.join(missing)}" if missing else "")
            shown = there
        if not missing:
            return
        if time.monotonic() > end:
            what = f"{', '.join(missing)} did not come"
            raise FdamedError(what, "fdamed lead", "Start it again when `fdamed serve` runs at every hospital.")
        time.sleep(2 * LOOK)


def _checked(command: Any, *arguments: Any) -> Any:
    """The result of a command to the server; ConnectionError if it is gone."""
    from nvflare.fuel.flare_api.api_spec import InternalError, NoConnection, SessionClosed

    try:
        return command(*arguments)
    except (NoConnection, SessionClosed, InternalError) as error:
        raise ConnectionError(str(error)) from None


@contextmanager
def session(kits: Path) -> Iterator[Any]:
    """A session with the study's server; ConnectionError if there is none in time."""
    from nvflare.fuel.flare_api.api_spec import InternalError, NoConnection
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    try:
        flare = new_secure_session(LEAD, str(kits / LEAD), timeout=60.0)
    except (NoConnection, InternalError) as error:
        raise ConnectionError(str(error)) from None
    try:
        yield flare
    finally:
        flare.close()


class Engine:
    """FLARE's server as a process of this one."""

    def __init__(self, kit: Path) -> None:
        self._kit, self._process = kit, start_kit(kit, kit / "engine.log")

    def ensure(self) -> None:
        """Start it again if it has ended."""
        if self._process.poll() is not None:
            log.warning("the server's engine ended and is started again")
            end(self._process)
            self._process = start_kit(self._kit, self._kit / "engine.log")

    def close(self) -> None:
        end(self._process)


@contextmanager
def started(kit: Path) -> Iterator[Engine]:
    """FLARE's server, while the block runs."""
    if not (kit / "startup").is_dir():
        raise FdamedError("there is no kit of the server", str(kit), "`fdamed invite` makes it.")
    close_kit(kit)
    engine = Engine(kit)
    try:
        yield engine
    finally:
        engine.close()
