"""Many hospitals in one process: each is built when it is asked, and only so many are there at a time.

The hospital that was asked longest ago leaves first. What it remembers goes to a file in its own folder and comes back
with it, so neither memory nor open files grow with the number of hospitals (docs/transfer_protocol.md).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fdamed.federation.client import Client, Step, answer, refusal
from fdamed.federation.client_state import put_aside, read_memory, write_memory
from fdamed.federation.server import Server
from fdamed.models.flat import Layout

SEATS = 64
"""Hospitals that are there at a time."""


class OnDemand(Server):
    """As InProcess, for any number of hospitals; `aside` says where a hospital's memory waits while it is away."""

    def __init__(
        self,
        builders: Mapping[str, Callable[[], Client]],
        target: str,
        layout: Layout,
        method: str,
        release: frozenset[str],
        aside: Callable[[str], Path],
        seats: int = SEATS,
    ) -> None:
        super().__init__(builders, target, layout, method)
        self._builders = dict(builders)
        self._release = release
        self._aside = aside
        self._seats = seats
        self._here: OrderedDict[str, Client] = OrderedDict()
        self._changed: set[str] = set()
        """Hospitals here that were asked since they came."""
        self._kept: dict[str, Path] = {}
        """Where the memory of a hospital stood when it last left, or when the run was taken up again."""

    def check_release(self, name: str, step: Step) -> None:
        refused = refusal(step, self._release, name, self.method)
        if refused:
            raise refused

    def _deliver(self, name: str, step: Step, nth: int, msg: Any) -> Any:
        client = self._come(name)
        self._changed.add(name)
        return answer(client, step, self.round, nth, msg)

    def _come(self, name: str) -> Client:
        if name in self._here:
            self._here.move_to_end(name)
            return self._here[name]
        while len(self._here) >= self._seats:
            self._leave()
        client = self._builders[name]()
        if name in self._kept:
            client.memory = read_memory(self._kept[name])
        self._here[name] = client
        return client

    def _leave(self) -> None:
        name, client = self._here.popitem(last=False)
        if name not in self._changed:
            return
        self._changed.discard(name)
        if client.memory:
            put_aside(client.memory, self._aside(name))
            self._kept[name] = self._aside(name)
        else:
            self._kept.pop(name, None)

    def save_memory(self, name: str, path: Path) -> bool:
        if name in self._here:
            memory = self._here[name].memory
        else:
            memory = read_memory(self._kept[name]) if name in self._kept else {}
        if memory:
            write_memory(memory, path)
        return bool(memory)

    def load_memory(self, name: str, path: Path) -> None:
        self._kept[name] = path
        self._changed.discard(name)
        self._here.pop(name, None)

    def close(self) -> None:
        self._here.clear()
