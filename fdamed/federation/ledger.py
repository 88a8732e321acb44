"""Who told what to whom, and how many bytes it was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

SERVER = "server"


class Ledger:
    """Counts messages and bytes by round, sender, receiver, step and kind of knowledge."""

    def __init__(self, lines: list[dict[str, Any]] | None = None) -> None:
        self._count: dict[tuple[int, str, str, str, str], list[int]] = defaultdict(lambda: [0, 0])
        for line in lines or []:
            key = (line["round"], line["from"], line["to"], line["step"], line["kind"])
            self._count[key] = [line["bytes"], line["messages"]]

    def note(self, round: int, sender: str, receiver: str, step: str, sizes: Mapping[str, int]) -> None:
        for kind, n in sizes.items():
            entry = self._count[(round, sender, receiver, step, kind)]
            entry[0] += n
            entry[1] += 1

    def lines(self) -> list[dict[str, Any]]:
        """Sorted, so that the order of hospitals leaves no trace."""
        return [
            {"round": r, "from": a, "to": b, "step": step, "kind": kind, "bytes": n, "messages": m}
            for (r, a, b, step, kind), (n, m) in sorted(self._count.items())
        ]

    def total(self, *, sender: str | None = None, receiver: str | None = None, kind: str | None = None) -> int:
        """Bytes that match."""
        return sum(
            n
            for (_, a, b, _, k), (n, _) in self._count.items()
            if (sender is None or a == sender) and (receiver is None or b == receiver) and (kind is None or k == kind)
        )
