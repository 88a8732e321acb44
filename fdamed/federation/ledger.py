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
        self._settled: dict[Key, int] = {}

    def note(self, round: int, sender: str, receiver: str, step: str, sizes: Mapping[str, int]) -> None:
        counts = self._open.setdefault(round, {})
        for kind, n in sizes.items():
            entry = counts.setdefault((sender, receiver, step, kind), [0, 0])
            entry[0] += n
            entry[1] += 1

    def lines(self) -> list[dict[str, Any]]:
        """Of the rounds that are not settled; sorted, so that the order of hospitals leaves no trace."""
        return [
            {"round": r, "from": a, "to": b, "step": step, "kind": kind, "bytes": n, "messages": m}
            for r, counts in sorted(self._open.items())
            for (a, b, step, kind), (n, m) in sorted(counts.items())
        ]

    def settle(self) -> list[dict[str, Any]]:
        """The lines, which whoever takes them keeps from now on; of their rounds only sums are left here."""
        taken = self.lines()
        for counts in self._open.values():
            for key, (n, _) in counts.items():
                self._settled[key] = self._settled.get(key, 0) + n
        self._open.clear()
        return taken

    def total(self, *, sender: str | None = None, receiver: str | None = None, kind: str | None = None) -> int:
        """Bytes that match, of all rounds."""
        pairs = [*self._settled.items(), *((k, n) for counts in self._open.values() for k, (n, _) in counts.items())]
        return sum(
            n
            for (a, b, _, k), n in pairs
            if (sender is None or a == sender) and (receiver is None or b == receiver) and (kind is None or k == kind)
        )
