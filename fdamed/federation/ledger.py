"""Who told what to whom, and how many bytes it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SERVER = "server"


Key = tuple[str, str, str, str]
"""Sender, receiver, step, kind of knowledge."""


class Ledger:
    """Counts messages and bytes by round, sender, receiver, step and kind of knowledge."""

    def __init__(self) -> None:
        self._open: dict[int, dict[Key, list[int]]] = {}
        self._settled: list[dict[str, Any]] = []

    def note(self, round: int, sender: str, receiver: str, step: str, sizes: Mapping[str, int]) -> None:
        counts = self._open.setdefault(round, {})
        for kind, n in sizes.items():
            entry = counts.setdefault((sender, receiver, step, kind), [0, 0])
            entry[0] += n
            entry[1] += 1

    def lines(self) -> list[dict[str, Any]]:
        """Sorted, so that the order of hospitals leaves no trace."""
        return [*self._settled, *self._new()]

    def settle(self) -> list[dict[str, Any]]:
        """The lines since the last time: those of a round that is over."""
        new = self._new()
        self._open.clear()
        self._settled += new
        return new

    def _new(self) -> list[dict[str, Any]]:
        return [
            {"round": r, "from": a, "to": b, "step": step, "kind": kind, "bytes": n, "messages": m}
            for r, counts in sorted(self._open.items())
            for (a, b, step, kind), (n, m) in sorted(counts.items())
        ]

    def total(self, *, sender: str | None = None, receiver: str | None = None, kind: str | None = None) -> int:
        """Bytes that match."""
        return sum(
            line["bytes"]
            for line in self.lines()
            if (sender is None or line["from"] == sender)
            and (receiver is None or line["to"] == receiver)
            and (kind is None or line["kind"] == kind)
        )
