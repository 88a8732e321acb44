"""Simulated faults: absent clients, lost messages, late answers.

Every fault is a function of the seed, the round, the client and the number of its earlier questions in this round; it
does not depend on the method, the order of the clients or a resume. Probabilities are thresholds on the same draws, so
that a fault at a low probability happens at every higher one, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from fdamed.config.train import EVERY, Faults
from fdamed.core.rng import Stream, stream
from fdamed.federation.absences import DroppedOut, Reason
from fdamed.federation.client import Step
from fdamed.federation.messages import kinds
from fdamed.federation.transport.base import Transport, Wrapper


@dataclass(frozen=True)
class Schedule:
    """Which fault happens to which client and when, under one seed."""

    faults: Faults
    target: str
    seed: int

    def absent(self, round: int, client: str) -> bool:
        """Whether the client is absent for the whole round."""
        if any(self._is(client, who) for who in self.faults.away.get(round, ())):
            return True
        return self._hit(client, self.faults.absent, self._stream("absent", round, client))

    def lost(self, round: int, client: str, question: int, way: Literal["down", "up"], step: Step) -> str | None:
        """The kind by which this question's message is lost, its step if it has no fields; None: it arrives."""
        plain = step.inner or step  # a masked answer is lost as what it masks
        content = list(kinds(plain.question if way == "down" else plain.answer).values())
        keys = (*content, plain.name, EVERY)
        rates = {key: getattr(ways, way) for key, ways in self.faults.lost.items() if key in keys}
        if not rates:
            return None
        key = max(rates, key=lambda k: rates[k])
        if not self._hit(client, rates[key], self._stream("lost", round, client, question, way)):
            return None
        return key if key in content else next(iter(content), step.name)

    def minutes(self, round: int, client: str, question: int) -> float | None:
        """How many minutes the answer takes; None without `minutes`."""
        times = self.faults.minutes
        if times is None:
            return None
        draw = self._stream("minutes", round, client, question).numpy.standard_normal()
        slower = math.prod(factor for who, factor in times.slower.items() if self._is(client, who))
        return times.median * slower * math.exp(times.spread * float(draw))

    def late(self, round: int, client: str, question: int) -> bool:
        taken, deadline = self.minutes(round, client, question), self.faults.deadline
        return taken is not None and deadline is not None and taken > deadline and not self._spared(client)

    def _hit(self, client: str, probability: float, draws: Stream) -> bool:
        return probability > 0.0 and not self._spared(client) and float(draws.numpy.random()) < probability

    def _spared(self, client: str) -> bool:
        return any(self._is(client, who) for who in self.faults.spare)

    def _is(self, client: str, who: str) -> bool:
        return who in (client, "target" if client == self.target else "sources")

    def _stream(self, *names: str | int) -> Stream:
        return stream(self.seed, "unreliable", *names)


class Faulty(Wrapper):
    """Another transport with the faults of a schedule."""

    def __init__(self, inner: Transport, faults: Faults, target: str, seed: int) -> None:
        super().__init__(inner)
        self.schedule = Schedule(faults, target, seed)
        self._questions: dict[str, int] = {}

    def begin(self, round: int) -> None:
        super().begin(round)
        self._questions.clear()

    def deliver(self, client: str, step: Step, nth: int, msg: Any) -> Any:
        question = self._questions[client] = self._questions.get(client, -1) + 1
        if self.schedule.absent(self.round, client):
            raise DroppedOut(client, "absent by schedule", Reason.ABSENT, asked=False)
        if kind := self.schedule.lost(self.round, client, question, "down", step):
            raise DroppedOut(client, f"message lost: {kind} down", Reason.LOST)
        reply = super().deliver(client, step, nth, msg)
        if kind := self.schedule.lost(self.round, client, question, "up", step):
            raise DroppedOut(client, f"message lost: {kind} up", Reason.LOST, reply=reply)
        if self.schedule.late(self.round, client, question):
            raise DroppedOut(client, "late", Reason.LATE, reply=reply)
        return reply
