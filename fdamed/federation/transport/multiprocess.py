"""One process for each client on this machine, connected by pipes."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection

import torch

from fdamed.core.errors import FdamedError
from fdamed.core.logs import LEVEL, show_on_stderr
from fdamed.federation.absences import DroppedOut, Reason
from fdamed.federation.client import Client
from fdamed.federation.messages import WireError, pack, unpack
from fdamed.federation.questions import Home
from fdamed.federation.storage.client_state import pack_state, unpack_state
from fdamed.federation.transport.endpoint import error_reply, handle_request
from fdamed.federation.transport.wire import ByteTransport, Wire, reply_body
from fdamed.models.flat import Layout
from fdamed.training.determinism import deterministic

log = logging.getLogger(__name__)
Homes = Mapping[str, Callable[[Client], Home]]


class Pipes(Wire):
    """Every client is built and answers in a process of its own."""

    def __init__(self, builders: Mapping[str, Callable[[], Client]], homes: Homes, method: str, threads: int) -> None:
        self.ended: set[str] = set()
        self._pipes: dict[str, Connection] = {}
        self.processes = {}
        context = multiprocessing.get_context("spawn")
        for name, build in builders.items():
            self._pipes[name], there = context.Pipe()
            arguments = (there, build, homes.get(name), method, threads, torch.get_deterministic_debug_mode())
            worker = context.Process(target=_serve, args=arguments, daemon=True)
            worker.start()
            there.close()
            self.processes[name] = worker

    def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes | DroppedOut]:
        out: dict[str, bytes | DroppedOut] = {}
        for client, request in requests.items():
            with self._noticing(client, out):
                self._pipes[client].send_bytes(request)
        for client in requests.keys() - out:
            with self._noticing(client, out):
                out[client] = self._pipes[client].recv_bytes()
        return out

    @contextmanager
    def _noticing(self, client: str, out: dict[str, bytes | DroppedOut]) -> Iterator[None]:
        """Notice that a client's process has ended."""
        try:
            yield
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.ended.add(client)
            out[client] = DroppedOut(client, "its process ended", Reason.DISCONNECTED)

    def close(self) -> None:
        for pipe in self._pipes.values():
            pipe.close()
        for worker in self.processes.values():
            worker.join(timeout=10)
            if worker.is_alive():
                worker.kill()


class Processes(ByteTransport):
    """All clients in processes of this machine; unlike an engine's, their states can be read."""

    def __init__(
        self,
        builders: Mapping[str, Callable[[], Client]],
        layout: Layout,
        method: str,
        release: Mapping[str, frozenset[str]],
        threads: int = 1,
        homes: Homes | None = None,
    ) -> None:
        """`homes`: client -> what makes its home in its process; default: files as they are named, no evaluation."""
        pipes = Pipes(builders, homes or {}, method, threads)
        super().__init__(pipes, layout, release)
        self._pipes, self.processes = pipes, pipes.processes

    def state(self, client: str, names: tuple[str, ...] | None = None) -> bytes | None:
        """The client's state (only `names`, if given), as bytes; None: the client is gone with its state."""
        if client in self._pipes.ended:
            return None
        try:
            return bytes(self._local(client, pack({"state": names}, b"")))
        except (DroppedOut, FdamedError, WireError):
            return None

    def restore(self, client: str, state: bytes) -> None:
        """Give a client its state back."""
        self._local(client, pack({"restore": True}, state))

    def _local(self, client: str, request: bytes) -> memoryview:
        reply = self.wire.exchange({client: request})[client]
        if isinstance(reply, DroppedOut):
            raise reply
        return reply_body(client, reply)


def _serve(
    pipe: Connection,
    build: Callable[[], Client],
    home: Callable[[Client], Home] | None,
    method: str,
    threads: int,
    mode: int,
) -> None:
    """A client's process: answer until the pipe is closed. `build` imports the steps.

    `mode`: torch's debug mode for deterministic algorithms in the server's process.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # SLURM signals every process; the server decides and closes the pipe
    if LEVEL in os.environ:  # the server's process shows its messages
        show_on_stderr()
    torch.set_num_threads(threads)
    deterministic(mode)
    try:
        client = build()
        at = home(client) if home else Home(client.model.layout)
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
            pipe.send_bytes(handle_request(client, method, request, at))
