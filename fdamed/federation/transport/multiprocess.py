"""One process for each client on this machine, connected by pipes."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection

import torch

from fdamed.core.errors import FdamedError
from fdamed.core.logs import LEVEL, show_on_stderr
from fdamed.federation.absences import DroppedOut, Reason
from fdamed.federation.client import UNEXPECTED, Client, error_reply, handle_request
from fdamed.federation.messages import WireError, pack, unpack
from fdamed.federation.storage.client_state import pack_state, unpack_state
from fdamed.federation.transport.base import ByteTransport, reply_body
from fdamed.models.flat import Layout

log = logging.getLogger(__name__)


class Processes(ByteTransport):
    """Every client is built and answers in a process of its own."""

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
        self._ended: set[str] = set()
        self._pipes: dict[str, Connection] = {}
        self.processes = {}
        """Client -> its process."""
        context = multiprocessing.get_context("spawn")
        for name, build in builders.items():
            self._pipes[name], there = context.Pipe()
            worker = context.Process(target=_serve, args=(there, build, method, threads), daemon=True)
            worker.start()
            there.close()
            self.processes[name] = worker

    def release(self, client: str) -> frozenset[str]:
        return self._release[client]

    def exchange(self, client: str, request: bytes) -> bytes:
        try:
            self._pipes[client].send_bytes(request)
            return self._pipes[client].recv_bytes()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._ended.add(client)
            raise DroppedOut(client, "its process ended", Reason.DISCONNECTED) from None

    def state(self, client: str, names: tuple[str, ...] | None = None) -> bytes | None:
        if client in self._ended:
            return None
        try:
            return bytes(reply_body(client, self.exchange(client, pack({"state": names}, b""))))
        except (DroppedOut, FdamedError, WireError):
            return None

    def restore(self, client: str, state: bytes) -> None:
        reply_body(client, self.exchange(client, pack({"restore": True}, state)))

    def close(self) -> None:
        for pipe in self._pipes.values():
            pipe.close()
        for worker in self.processes.values():
            worker.join(timeout=10)
            if worker.is_alive():
                worker.kill()


def _serve(pipe: Connection, build: Callable[[], Client], method: str, threads: int) -> None:
    """A client's process: answer until the pipe is closed. `build` imports the steps."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # SLURM signals every process; the server decides and closes the pipe
    if LEVEL in os.environ:  # the server's process shows its messages
        show_on_stderr()
    torch.set_num_threads(threads)
    try:
        client = build()
    except FdamedError as error:
        pipe.recv_bytes()
        pipe.send_bytes(error_reply(error))
        return
    while True:
        try:
            request = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        head, body = unpack(request)
        if "state" in head:
            names = head["state"]
            pipe.send_bytes(pack({"ok": True}, pack_state(client.memory, None if names is None else tuple(names))))
        elif "restore" in head:
            client.memory = unpack_state(bytes(body), f"client {client.name}")
            pipe.send_bytes(pack({"ok": True}, b""))
        else:
            pipe.send_bytes(_handled(client, method, request))


def _handled(client: Client, method: str, request: bytes) -> bytes:
    """The reply; the text of an unexpected error may quote patients' data and stays in the client's log."""
    try:
        return handle_request(client, method, request)
    except Exception:
        log.exception("a step failed at client %s", client.name)
        return pack({"ok": False, "error": UNEXPECTED}, b"")
