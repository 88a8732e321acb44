"""Take part in a study over a network: prepare this hospital's data, then answer the study's server.

It runs until it is stopped, starts its own process and the connection again if they end, and lets out only what the
policy in the hospital's file allows. What was sent is listed in clients/CLIENT/released.jsonl.

Examples:
    fdamed serve --site site.yaml
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from fdamed.config.base import without_defaults
from fdamed.core.environment import cores
from fdamed.core.errors import FdamedError
from fdamed.core.files import digest, private, read_json, write_json
from fdamed.core.locks import locked
from fdamed.core.logs import show_on_stderr
from fdamed.core.signals import end_with_parent
from fdamed.pipeline.hospitals.kits import check_kit, close_kit
from fdamed.pipeline.hospitals.site import Site, load_site, own_config, own_split, study_of
from fdamed.pipeline.paths import Places

GROUP = "run", 7
PRIVATE = True
OPTIONS = {"--site": {"type": "path", "required": True, "metavar": "FILE", "help": "this hospital's file"}}
TABLES = (".csv", ".csv.gz", ".tsv", ".json", ".xlsx")
RESTARTS, WITHIN = 10, 60.0
"""Starts of a part in so many seconds, after which it is given up; FLARE's client ends when it finds no server."""
ENGINE = {
    "NVFLARE_STREAMING_RETRY_WAIT": "30",
    "NVFLARE_STREAMING_RETRY_TIMEOUT": "180",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": "4194304",
}
"""FLARE sends a reply again that is not confirmed after 5 s: on a slow line it is still on its way, and the copies keep
the line busy twice as long; after 60 s it gives up, which a line that was cut may take. Until then a thread waits for
each reply. For each message it takes memory of a chunk's size (1 MB); glibc keeps freed memory of each thread apart."""
log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> None:
    site = load_site(arguments.site)
    study = study_of(site)
    check_kit(Path(site.kit), site.client, site.authority)
    folder = Places.of(own_config(site, study)).client(site.client)
    with locked(private(folder)):
        prepare(site)
        if study.network:
            where = f"{study.network.host}:{study.network.port}"
            log.info("%s is ready: it answers questions of %s until it is stopped (Ctrl-C)", site.client, where)
        supervise(arguments.site, site, folder)


def prepare(site: Site) -> None:
    """Ingest, split and cache this hospital's own data, unless this was done with the same settings."""
    from fdamed.cli.commands import ingest, leakage, split
    from fdamed.data.cache import build
    from fdamed.pipeline.paths import clinical, rows_in

    config = own_config(site, study_of(site))
    places, client, (data, _) = Places.of(config), site.client, clinical(config)
    settings = digest([without_defaults(s) for s in (config.data, config.split, config.image)])
    mark, tables = places.client(client) / "prepared.json", _tables(Path(str(getattr(config.data, "root", ""))))
    if mark.exists() and (before := read_json(mark)).get("settings") == settings:
        if before.get("tables") != tables:
            log.warning(
                "the tables of %s have changed since they were read: the study goes on with the data as it was", client
            )
            log.warning("to read them again remove %s; the lead must then begin a new study", mark)
        return
    log.info("preparing the data of %s", client)
    private(places.clients)
    ingest.ingest(config, places)
    split.write(config, own_split(config, client), places)
    rows = rows_in(places.client(client) / "manifest.parquet", "split")
    build(rows, places.client(client), data, config.image, cores(), f"cache {client}")
    leakage.write(config, own_split(config, client), places)
    write_json(mark, {"settings": settings, "tables": tables})


def _tables(root: Path) -> str:
    """What changes when a table of the data set does: names, sizes and times; images are too many to watch."""
    found = sorted(path for path in root.glob("*") if path.name.endswith(TABLES) and path.is_file())
    return digest([(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in found])


def resident(file: Path) -> None:
    """The hospital's own process: answer requests at its socket."""
    show_on_stderr()
    import torch

    from fdamed.federation.secure_sums.certificates import Certificates
    from fdamed.federation.transport.local_socket import answer_all, socket_of
    from fdamed.pipeline.hospitals.resident import Hospital
    from fdamed.training.determinism import deterministic

    end_with_parent()
    site = load_site(file)
    study = study_of(site)
    hospital = Hospital(site, study, Certificates.of(Path(site.kit), study.split.clients))
    torch.set_num_threads(hospital.threads)
    deterministic()
    answer_all(socket_of(hospital.folder), hospital.answer)


def supervise(file: Path, site: Site, folder: Path) -> None:
    """Keep the hospital's process and FLARE's client running until this process is stopped."""
    from fdamed.federation.transport.local_socket import socket_of

    kit = Path(site.kit)
    close_kit(kit)
    write_json(kit / "local" / "fdamed.json", {"socket": str(socket_of(folder))})
    spawn = multiprocessing.get_context("spawn")

    def start_resident() -> Any:
        process = spawn.Process(target=resident, args=(file,))
        process.start()
        return process

    def start_engine() -> Any:
        return start_kit(kit, kit / "engine.log")

    starts: dict[Callable[[], Any], list[float]] = {start_resident: [], start_engine: []}
    running: dict[Callable[[], Any], Any] = {}
    signal.signal(signal.SIGTERM, _stop)
    try:
        while True:
            for start, times in starts.items():
                if start in running and _alive(running[start]):
                    continue
                if start in running:
                    log.warning("%s ended and is started again", start.__name__.removeprefix("start_"))
                times[:] = [t for t in times if time.monotonic() - t < WITHIN] + [time.monotonic()]
                if len(times) > RESTARTS:
                    fix = f"See the messages above and {kit / 'engine.log'}."
                    raise FdamedError(f"a part ended {RESTARTS} times in {WITHIN:.0f} s", "fdamed serve", fix)
                running[start] = start()
            time.sleep(0.2)
    finally:
        for process in running.values():
            end(process)


def start_kit(kit: Path, output: Path) -> subprocess.Popen[bytes]:
    """Start what a FLARE kit starts, as a process of this one, with the Python that runs fdamed."""
    environment = (
        os.environ | ENGINE | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    )
    with open(output, "ab") as file:
        return subprocess.Popen(
            ["bash", str(kit / "startup" / "sub_start.sh"), "--once"],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )


def _alive(process: Any) -> bool:
    return process.poll() is None if isinstance(process, subprocess.Popen) else bool(process.is_alive())


def end(process: Any) -> None:
    """End a process and, if it leads a session, all of its children."""
    if isinstance(process, subprocess.Popen):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        process.wait()
    else:
        process.kill()
        process.join()


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
