"""One process a hospital: nothing but bytes crosses."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from fdamed.core.errors import FdamedError
from fdamed.federation.client import Client, Step, open_door, pack, refusal, unpack
from fdamed.federation.client_state import read_memory, write_memory
from fdamed.federation.messages import WireError, decode, encode
from fdamed.federation.server import DroppedOut, Server
from fdamed.federation.validation.checks import REJECTED
from fdamed.models.flat import Layout


class Processes(Server):
    """One process a hospital; nothing but bytes crosses."""

    def __init__(
        self,
        builders: Mapping[str, Callable[[], Client]],
        target: str,
        layout: Layout,
        method: str,
        release: Mapping[str, frozenset[str]],
        threads: int = 1,
    ) -> None:
        super().__init__(builders, target, layout, method)
        self._release = dict(release)
        context = multiprocessing.get_context("spawn")
        self._gone: set[str] = set()
        self._lines: dict[str, Connection] = {}
        self._workers = {}
        for name, build in builders.items():
            here, there = context.Pipe()
            worker = context.Process(target=_hospital, args=(there, build, method, threads), daemon=True)
            worker.start()
            there.close()
            self._lines[name], self._workers[name] = here, worker

    def check_release(self, name: str, step: Step) -> None:
        refused = refusal(step, self._release[name], name, self.method)
        if refused:
            raise refused

    def _deliver(self, name: str, step: Step, nth: int, msg: Any) -> Any:
        head = {"step": step.name, "round": self.round, "nth": nth}
        try:
            return decode(step.answer, self._talk(name, head, encode(msg)), self.layout.size)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._gone.add(name)
            why = "its process ended"
        except WireError as error:
            why = f"{REJECTED}{error}"
        self._miss(name, step, why)
        raise DroppedOut(name, why)

    def _talk(self, name: str, head: dict[str, Any], body: bytes) -> memoryview:
        line = self._lines[name]
        line.send_bytes(pack(head, body))
        reply, content = unpack(line.recv_bytes())
        if reply.get("ok") is True:
            return content
        told = reply.get("error")
        if not isinstance(told, list) or len(told) != 3:
            raise WireError("an answer without a head")
        raise FdamedError(*map(str, told))

    def gone(self, name: str) -> bool:
        return name in self._gone

    def save_memory(self, name: str, path: Path) -> bool:
        if name in self._gone:
            return False
        try:
            return len(self._talk(name, {"save": str(path)}, b"")) > 0
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._gone.add(name)
            return False

    def load_memory(self, name: str, path: Path) -> None:
        self._talk(name, {"load": str(path)}, b"")

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        for worker in self._workers.values():
            worker.join(timeout=10)
            if worker.is_alive():
                worker.kill()


def _hospital(line: Connection, build: Callable[[], Client], method: str, threads: int) -> None:
    """The life of a hospital's process: answer until the line is closed. `build` knows which steps there are."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # SLURM tells every process to end; the server decides, and hangs up
    torch.set_num_threads(threads)
    try:
        client = build()
    except FdamedError as error:
        line.recv_bytes()
        line.send_bytes(pack({"ok": False, "error": [error.what, error.where, error.fix]}, b""))
        return
    door = open_door(client, method)
    while True:
        try:
            request = line.recv_bytes()
        except (EOFError, OSError):
            return
        head, _ = unpack(request)
        if "save" in head:
            try:
                if client.memory:
                    write_memory(client.memory, Path(head["save"]))
                line.send_bytes(pack({"ok": True}, b"1" if client.memory else b""))
            except FdamedError as error:
                line.send_bytes(pack({"ok": False, "error": [error.what, error.where, error.fix]}, b""))
        elif "load" in head:
            client.memory = read_memory(Path(head["load"]))
            line.send_bytes(pack({"ok": True}, b""))
        else:
            line.send_bytes(door(request))
