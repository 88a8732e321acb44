"""A network that fails as a schedule says: hospitals that are away, messages that are lost, answers that come late.

Every fault is a function of the seed, the round, the hospital and how many questions it was asked before in this round:
not of the method, of the order in which hospitals are asked, or of where a run was resumed. Chances are thresholds on
the same draws, so that what is hit at a low level is hit at every higher one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fdamed.config.faults import EVERY, Faults
from fdamed.core.rng import Stream, stream
from fdamed.federation.client import Step
from fdamed.federation.messages import kinds
from fdamed.federation.server import DroppedOut, Server

Way = Literal["down", "up"]
ABSENT, LATE = "absent by schedule", "late"


@dataclass(frozen=True)
class Schedule:
    """What happens to whom and when under one seed."""

    faults: Faults
    target: str
    seed: int

    def absent(self, round: int, client: str) -> bool:
        """Whether the hospital is away for the whole round."""
        if any(self._is(client, who) for who in self.faults.away.get(round, ())):
            return True
        return self._hit(client, self.faults.absent, self._stream("absent", round, client))

    def lost(self, round: int, client: str, question: int, way: Way, step: Step) -> str | None:
        """The kind by which the message of this question is lost on its way; None: it arrives."""
        content = list(kinds(step.question if way == "down" else step.answer).values())
        chances = {
            key: getattr(ways, way) for key, ways in self.faults.lost.items() if key in (*content, step.name, EVERY)
        }
        if not chances:
            return None
        key = max(chances, key=lambda k: chances[k])
        if not self._hit(client, chances[key], self._stream("lost", round, client, question, way)):
            return None
        return key if key in content else content[0]

    def minutes(self, round: int, client: str, question: int) -> float | None:
        """How long the answer takes; None where nobody counts."""
        times = self.faults.minutes
        if times is None:
            return None
        draw = self._stream("minutes", round, client, question).numpy.standard_normal()
        slower = math.prod(factor for who, factor in times.slower.items() if self._is(client, who))
        return times.median * slower * math.exp(times.spread * float(draw))

    def late(self, round: int, client: str, question: int) -> bool:
        taken, deadline = self.minutes(round, client, question), self.faults.deadline
        return taken is not None and deadline is not None and taken > deadline and not self._spared(client)

    def _hit(self, client: str, chance: float, draws: Stream) -> bool:
        return chance > 0.0 and not self._spared(client) and float(draws.numpy.random()) < chance

    def _spared(self, client: str) -> bool:
        return any(self._is(client, who) for who in self.faults.spare)

    def _is(self, client: str, who: str) -> bool:
        return who == client or who == ("target" if client == self.target else "sources")

    def _stream(self, *names: str | int) -> Stream:
        return stream(self.seed, "unreliable", *names)


class Unreliable(Server):
    """Another network, hit by a schedule; bytes that left are counted, whether or not they arrived."""

    def __init__(self, inner: Server, faults: Faults, seed: int) -> None:
        super().__init__((*inner.sources, inner.target), inner.target, inner.layout, inner.method)
        self.schedule = Schedule(faults, inner.target, seed)
        self.absences = inner.absences
        self.declared, self.shares = inner.declared, inner.shares
        self._inner = inner
        self._questions: dict[str, int] = {}

    def begin(self, round: int, rounds: int) -> None:
        super().begin(round, rounds)
        self._inner.begin(round, rounds)
        self._questions.clear()

    def ask_all(self, clients: Iterable[str], step: Step, msg: Any) -> dict[str, Any]:
        """As on any network; with fewer sources than the quorum the round is lost."""
        asked = set(clients)
        replies = super().ask_all(asked, step, msg)
        if asked - {self.target}:
            self.hold_quorum()
        return replies

    def hold_quorum(self) -> None:
        missed = {a["client"] for a in self.absences if a["round"] == self.round} & set(self.sources)
        there, quorum = len(set(self.participants) - missed), self.schedule.faults.quorum
        if missed and there < quorum:
            self.notes["below_quorum"] = 1.0
            raise DroppedOut("sources", f"{there} of {len(self.participants)} are there, the quorum is {quorum}")

    def _unreachable(self, client: str) -> str | None:
        self._questions[client] = self._questions.get(client, -1) + 1
        return ABSENT if self.schedule.absent(self.round, client) else None

    def _deliver(self, client: str, step: Step, nth: int, msg: Any) -> Any:
        kind = self._lost(client, "down", step)
        if kind:
            why = f"message lost: {kind} down"
            self._miss(client, step, why)
            raise DroppedOut(client, why)
        return self._inner._deliver(client, step, nth, msg)

    def _fault(self, client: str, step: Step, msg: Any, reply: Any) -> str | None:
        kind = self._lost(client, "up", step)
        if kind:
            return f"message lost: {kind} up"
        if self.schedule.late(self.round, client, self._questions[client]):
            return LATE
        return super()._fault(client, step, msg, reply)

    def _lost(self, client: str, way: Way, step: Step) -> str | None:
        return self.schedule.lost(self.round, client, self._questions[client], way, step)

    def check_release(self, client: str, step: Step) -> None:
        self._inner.check_release(client, step)

    def gone(self, client: str) -> bool:
        return self._inner.gone(client)

    def save_memory(self, client: str, path: Path) -> bool:
        return self._inner.save_memory(client, path)

    def load_memory(self, client: str, path: Path) -> None:
        self._inner.load_memory(client, path)

    def close(self) -> None:
        self._inner.close()
