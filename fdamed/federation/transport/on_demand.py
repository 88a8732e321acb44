"""Many hospitals in one process: each is built when it is asked, and only so many are there at a time.

The hospital that was asked longest ago leaves first. What it remembers goes to a file in its own folder and comes back
with it, so neither memory nor open files grow with the number of hospitals (docs/transfer_protocol.md).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fdamed.federation.client import Site, Step, answer, refusal
from fdamed.federation.client_state import put_aside, read_memory, write_memory
from fdamed.federation.server import Network
from fdamed.models.flat import Layout

SEATS = 64
"""Hospitals that are there at a time."""


class OnDemand(Network):
    """As InProcess, for any number of hospitals; `aside` says where a hospital's memory waits while it is away."""

    def __init__(
        self,
        builders: Mapping[str, Callable[[], Site]],
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
        self._here: OrderedDict[str, Site] = OrderedDict()
        self._changed: set[str] = set()
        """Hospitals here that were asked since they came."""
        self._kept: dict[str, Path] = {}
        """Where the memory of a hospital stood when it last left, or when the run was taken up again."""

    def check_release(self, party: str, step: Step) -> None:
        refused = refusal(step, self._release, party, self.method)
        if refused:
            raise refused

    def _deliver(self, party: str, step: Step, nth: int, msg: Any) -> Any:
        site = self._come(party)
        self._changed.add(party)
        return answer(site, step, self.round, nth, msg)

    def _come(self, party: str) -> Site:
        if party in self._here:
            self._here.move_to_end(party)
            return self._here[party]
        while len(self._here) >= self._seats:
            self._leave()
        site = self._builders[party]()
        if party in self._kept:
            site.memory = read_memory(self._kept[party])
        self._here[party] = site
        return site

    def _leave(self) -> None:
        party, site = self._here.popitem(last=False)
        if party not in self._changed:
            return
        self._changed.discard(party)
        if site.memory:
            put_aside(site.memory, self._aside(party))
            self._kept[party] = self._aside(party)
        else:
            self._kept.pop(party, None)

    def save_memory(self, party: str, path: Path) -> bool:
        if party in self._here:
            memory = self._here[party].memory
        else:
            memory = read_memory(self._kept[party]) if party in self._kept else {}
        if memory:
            write_memory(memory, path)
        return bool(memory)

    def load_memory(self, party: str, path: Path) -> None:
        self._kept[party] = path
        self._changed.discard(party)
        self._here.pop(party, None)

    def close(self) -> None:
        self._here.clear()
