"""Clients in this process, each built when it is asked, with only some resident at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fdamed.federation.client import Client, Step
from fdamed.federation.questions import Home, Memory
from fdamed.federation.storage.client_state import pack_state, park_state, read_state
from fdamed.federation.transport.base import InProcess, Transport
from fdamed.models.flat import Layout

SEATS = 64
"""Clients that are resident at a time."""


class OnDemand(InProcess):
    """Any number of clients in this process; the least recently asked one makes room for the next.

    Its state waits in the file `parked(name)`, so neither memory nor open files grow with the number of clients
    (docs/how_to/pretrain_and_finetune.md).
    """

    def __init__(
        self,
        builders: Mapping[str, Callable[[], Client]],
        layout: Layout,
        release: frozenset[str],
        parked: Callable[[str], Path],
        seats: int = SEATS,
        homes: Mapping[str, Home] | None = None,
    ) -> None:
        Transport.__init__(self, builders, layout)
        self.clients, self.homes = OrderedDict(), dict(homes or dict.fromkeys(builders, Home(layout)))
        self._builders, self._release, self._parked, self._seats = dict(builders), release, parked, seats
        self._away: set[str] = set()
        """Clients whose state is in their parked file."""

    def release(self, client: str) -> frozenset[str]:
        return self._release

    def deliver(self, client: str, step: Step, nth: int, msg: Any) -> Any:
        if client not in self.clients:
            while len(self.clients) >= self._seats:
                name, leaving = self.clients.popitem(last=False)
                self._park(name, pack_state(leaving.memory))
            self.clients[client] = self._builders[client]()
            if client in self._away:
                self.clients[client].memory = read_state(self._parked(client))
        self.clients.move_to_end(client)
        return super().deliver(client, step, nth, msg)

    def _park(self, name: str, state: bytes) -> None:
        self._away.discard(name)
        if state:
            park_state(state, self._parked(name))
            self._away.add(name)

    def state(self, client: str, names: tuple[str, ...] | None = None) -> bytes:
        if client in self.clients:
            return super().state(client, names)
        return pack_state(read_state(self._parked(client)), names) if client in self._away else b""

    def restore(self, client: str, state: bytes) -> None:
        self._park(client, state)
        self.clients.pop(client, None)

    def _memory(self, client: str) -> Memory:
        if client in self.clients:
            return super()._memory(client)
        away = client in self._away
        return Memory(
            lambda: read_state(self._parked(client)) if away else {},
            lambda state: self.restore(client, pack_state(state)),
        )
