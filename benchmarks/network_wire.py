"""Round trips of bytes to five hospitals that only echo: over NVIDIA FLARE as `fdamed lead` uses it, and over pipes."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.network_controller import HOSPITALS, timed
from fdamed.cli.commands.lead import session, started, wait_for_hospitals
from fdamed.cli.commands.serve import end, start_kit
from fdamed.core.files import private, read_json, write_json
from fdamed.federation.transport.local_socket import answer_all, socket_of
from fdamed.pipeline.hospitals.authority import make_request
from fdamed.pipeline.hospitals.kits import ALLOWED, LEAD, close_kit, provision

TIMER = "benchmarks.network_controller.Timer"
REPOSITORY = Path(__file__).parents[1]


def free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return int(line.getsockname()[1])


def echo(folder: Path) -> None:
    answer_all(socket_of(folder), bytes)


def over_flare(folder: Path) -> dict[str, Any]:
    """Seconds by size, and the most memory of the server's job in MB."""
    port, kits = free_port(), folder / "kits"
    made = provision("wire", "localhost", port, {h: make_request(h, private(folder / h)) for h in HOSPITALS}, kits)
    os.environ["PYTHONPATH"] = str(REPOSITORY)
    shutil.move(made / "localhost", kits / "server")
    shutil.move(made / LEAD, kits / LEAD)
    ALLOWED["server"].append(TIMER)
    found, job = folder / "found.json", _write_job(folder / "job", folder / "found.json")
    with ExitStack() as stack:
        for hospital in HOSPITALS:
            kit = made / hospital
            close_kit(kit)
            place = folder / hospital
            shutil.copy(place / f"{hospital}.key", kit / "startup" / "client.key")
            write_json(kit / "local" / "fdamed.json", {"socket": str(socket_of(place))})
            process = multiprocessing.get_context("spawn").Process(target=echo, args=(place,))
            process.start()
            stack.callback(end, process)
            stack.callback(end, start_kit(kit, kit / "engine.log"))
        stack.enter_context(started(kits / "server"))
        flare = stack.enter_context(session(kits))
        wait_for_hospitals(flare, HOSPITALS, 120.0)
        flare.submit_job(str(job))
        limit = time.monotonic() + 600
        while not found.exists():
            if time.monotonic() > limit:
                raise SystemExit((kits / "server" / "engine.log").read_text(encoding="utf-8")[-3000:])
            time.sleep(0.1)
    content: dict[str, Any] = read_json(found)
    return content


def _write_job(folder: Path, found: Path) -> Path:
    meta = {"name": "wire", "resource_spec": {}, "deploy_map": {"app": ["@ALL"]}, "min_clients": len(HOSPITALS)}
    write_json(folder / "meta.json", meta | {"mandatory_clients": list(HOSPITALS)})
    server: dict[str, Any] = {"format_version": 2, "components": []}
    server["workflows"] = [{"id": "timer", "path": TIMER, "args": {"found": str(found)}}]
    executor = {"tasks": ["*"], "executor": {"path": ALLOWED["client"][0], "args": {}}}
    write_json(folder / "app" / "config" / "config_fed_server.json", server)
    client = {"format_version": 2, "executors": [executor], "components": []}
    write_json(folder / "app" / "config" / "config_fed_client.json", client)
    return folder


def over_pipes() -> dict[str, float]:
    """The same over the pipes of the multiprocess transport."""
    context, pipes, workers = multiprocessing.get_context("spawn"), {}, []
    for hospital in HOSPITALS:
        pipes[hospital], there = context.Pipe()
        workers.append(context.Process(target=_echo_pipe, args=(there,), daemon=True))
        workers[-1].start()
        there.close()

    def exchange(requests: Mapping[str, bytes]) -> dict[str, bytes]:
        for hospital, request in requests.items():
            pipes[hospital].send_bytes(request)
        return {hospital: pipes[hospital].recv_bytes() for hospital in requests}

    found = timed(exchange)
    for pipe in pipes.values():
        pipe.close()
    for worker in workers:
        worker.join()
    return found


def _echo_pipe(pipe: Connection) -> None:
    while True:
        try:
            pipe.send_bytes(pipe.recv_bytes())
        except EOFError:
            return
