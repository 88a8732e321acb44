"""One process a client: nothing but bytes crosses."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch

from fdamed.core.errors import FdamedError
from fdamed.core.logs import LEVEL, show_on_stderr
from fdamed.federation.absences import DroppedOut, Reason
from fdamed.federation.client import Client, Step, open_door, pack, unpack
from fdamed.federation.client_state import pack_state, unpack_state
from fdamed.federation.messages import WireError, decode, encode
from fdamed.federation.transport.base import Transport
from fdamed.models.flat import Layout

ENDED = (EOFError, BrokenPipeError, ConnectionResetError)


class Processes(Transport):
    """One process a client; a client is built in its own process."""

    def __init__(
        self,
        builders: Mapping[str, Callable[[], Client]],
        layout: Layout,
        method: str,
        release: Mapping[str, frozenset[str]],
        threads: int = 1,
    ) -> None:
        super().__init__(builders, layout)
        self._release = dict(release)
        self._gone: set[str] = set()
        self._lines: dict[str, Connection] = {}
        self._workers = {}
        context = multiprocessing.get_context("spawn")
        for name, build in builders.items():
            here, there = context.Pipe()
            worker = context.Process(target=_serve, args=(there, build, method, threads), daemon=True)
            worker.start()
            there.close()
            self._lines[name], self._workers[name] = here, worker

    def release(self, client: str) -> frozenset[str]:
        return self._release[client]

    def deliver(self, client: str, step: Step, nth: int, msg: Any) -> Any:
        head = {"step": step.name, "round": self.round, "nth": nth}
        try:
            return decode(step.answer, self._exchange(client, head, encode(msg)), self.layout.size)
        except ENDED:
            self._gone.add(client)
            raise DroppedOut(client, "its process ended", Reason.DISCONNECTED) from None
        except WireError as error:
            raise DroppedOut(client, str(error), Reason.MALFORMED) from None

    def _exchange(self, client: str, head: dict[str, Any], body: bytes) -> memoryview:
        line = self._lines[client]
        line.send_bytes(pack(head, body))
        reply, content = unpack(line.recv_bytes())
        if reply.get("ok") is True:
            return content
        error = reply.get("error")
        if not isinstance(error, list) or len(error) != 3:
            raise WireError("an answer without a header")
        raise FdamedError(*map(str, error))

    def state(self, client: str, names: tuple[str, ...] | None = None) -> bytes | None:
        if client in self._gone:
            return None
        try:
            return bytes(self._exchange(client, {"state": names}, b""))
        except ENDED:
            self._gone.add(client)
            return None

    def restore(self, client: str, state: bytes) -> None:
        self._exchange(client, {"restore": True}, state)

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        for worker in self._workers.values():
            worker.join(timeout=10)
            if worker.is_alive():
                worker.kill()


def _serve(line: Connection, build: Callable[[], Client], method: str, threads: int) -> None:
    """A client's process: answer until the line is closed. `build` imports the steps."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # SLURM tells every process to end; the server decides, and hangs up
    if LEVEL in os.environ:  # the server's process shows its messages
        show_on_stderr()
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
        head, body = unpack(request)
        if "state" in head:
            names = head["state"]
            line.send_bytes(pack({"ok": True}, pack_state(client.memory, None if names is None else tuple(names))))
        elif "restore" in head:
            client.memory = unpack_state(bytes(body), f"client {client.name}")
            line.send_bytes(pack({"ok": True}, b""))
        else:
            line.send_bytes(door(request))
