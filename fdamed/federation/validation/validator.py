"""Validation of answers before any method sees them, driven by the kinds of message fields and their Check.

The server passes every answer through `Validator.check`; no method calls it and none can bypass it. Always on: what no
honest client can fail (checks.py, replay.py). Opt-in: norms and directions of the sources' updates.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fdamed.config.validation import Validation
from fdamed.federation.absences import Reason
from fdamed.federation.client import Step
from fdamed.federation.messages import Check, checks, kinds
from fdamed.federation.validation import directions
from fdamed.federation.validation.checks import MOST, PLAIN, WHOLE, Fault, fault_of, odd_shapes
from fdamed.federation.validation.directions import MAJORITY, Bearings, Shares
from fdamed.federation.validation.norms import Move, distance, judge
from fdamed.federation.validation.replay import FEWEST, Replays, wholes
from fdamed.models.flat import Layout

log = logging.getLogger(__name__)


@dataclasses.dataclass
class Verdict:
    """The accepted answers, which of the others were rejected and why, and the factors of those that were clipped."""

    accepted: dict[str, Any]
    rejected: dict[str, Fault] = dataclasses.field(default_factory=dict)
    clipped: dict[str, float] = dataclasses.field(default_factory=dict)

    def reject(self, faults: Mapping[str, Fault]) -> None:
        for client, fault in faults.items():
            self.rejected[client] = fault
            del self.accepted[client]


class Validator:
    """The checks of one run and what they remember."""

    def __init__(self, layout: Layout, target: str, settings: Validation | None = None) -> None:
        self.layout, self.target = layout, target
        self.settings = settings or Validation()
        self.images: Mapping[str, int] = {}
        """Client -> the most images it can count, where it has declared them."""
        self.class_shares: Mapping[str, Shares] = {}
        """Client -> the share of each class in its images, where it has declared them."""
        self._replays, self._bearings = Replays(), Bearings()
        self._strikes: dict[str, set[int]] = {}
        self._excluded: set[str] = set()
        self._sent: dict[str, Tensor] = {}
        """The model that each client was last sent in this round."""
        self._of_target: dict[tuple[str, str], Move] = {}
        """(step, field) -> the target's own move in this round: one of those that sources are compared with."""
        self._warned = False

    def begin(self) -> None:
        """Start a round."""
        self._sent.clear()
        self._of_target.clear()
        self._replays.forget_question()

    @property
    def excluded(self) -> frozenset[str]:
        """Sources of which at least one answer was excluded, in this or an earlier job."""
        return frozenset(self._excluded)

    def quarantined(self, sources: Iterable[str]) -> tuple[str, ...]:
        """Sources whose answers were rejected in so many rounds that they are not asked again."""
        limit = self.settings.strikes
        return tuple(s for s in sources if limit and len(self._strikes.get(s, ())) >= limit)

    def recall(self, absences: Iterable[Mapping[str, Any]]) -> None:
        """Remember the rounds in which answers were rejected, in this or an earlier job."""
        for absence in absences:
            reason = Reason(absence["reason"])
            if reason.strikes:
                self._strikes.setdefault(absence["client"], set()).add(absence["round"])
            if reason.excludes:
                self._excluded.add(absence["client"])

    def news(self) -> list[dict[str, Any]]:
        """What was learned of the sources since the last call, for the run's record."""
        found = [*self._replays.news, *self._bearings.news]
        self._replays.news.clear()
        self._bearings.news.clear()
        return found

    def learn(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Restore what the validator of an earlier job has learned."""
        for line in lines:
            (self._replays if "answer" in line else self._bearings).recall(line)

    def check(self, round: int, step: Step, questions: Mapping[str, Any], replies: Mapping[str, Any]) -> Verdict:
        """Which of the answers to one step, asked of several clients, may be used."""
        verdict = Verdict(dict(replies))
        for client, reply in replies.items():
            question = questions[client]
            for _, model in wholes(question):
                self._sent[client] = model
            if fault := self._fault(round, step, client, question, reply):
                verdict.reject({client: fault})
        sources = [client for client in verdict.accepted if client != self.target]
        annotated = checks(step.answer)
        for name, kind in kinds(step.answer).items():
            check = annotated.get(name, PLAIN)
            if kind == "statistic" and check.shape is None:
                like = next((s for s in (statistic(questions[c], name) for c in sources) if s is not None), None)
                verdict.reject(odd_shapes(name, {c: getattr(verdict.accepted[c], name) for c in sources}, like))
                sources = [client for client in sources if client in verdict.accepted]
        if self.settings.norms is not None or self.settings.directions is not None:
            for name, kind in kinds(step.answer).items():
                if kind in (*WHOLE, "statistic") or (kind == "scalar" and name in annotated):
                    self._compare(round, step, name, kind, annotated.get(name, PLAIN), questions, verdict)
        return verdict

    def _fault(self, round: int, step: Step, client: str, question: Any, reply: Any) -> Fault | None:
        """What is wrong with one answer by itself."""
        if fault := fault_of(reply, question, self.layout, self.images.get(client, MOST)):
            return fault
        if client == self.target:
            return None
        if getattr(reply, "n", 1) == 0 and wholes(reply):
            return Fault(Reason.NO_IMAGES, "it trained on no image")
        why = self._replays.fault(round, client, step.name, question, reply)
        return Fault(Reason.REPLAY, why) if why else None

    # --- robust aggregation -------------------------------------------------------------------------------------------

    def _compare(
        self, round: int, step: Step, name: str, kind: str, check: Check, questions: Mapping[str, Any], verdict: Verdict
    ) -> None:
        """Compare one field of the sources' answers: norms, then directions; then clip what is a little too large."""
        replies = verdict.accepted
        start = {c: self._start(c, name, kind, questions[c]) for c in replies}
        for c, base in start.items():
            if base is not None and base.shape != getattr(replies[c], name).shape:
                start[c] = None  # another thing of the same name
        if self.target in replies:
            self._of_target[step.name, name] = self._move(replies[self.target], name, kind, start[self.target])
        values = {c: getattr(r, name) for c, r in replies.items() if c != self.target}
        if kind == "scalar":
            values = {c: value for c, value in values.items() if value >= 0.0}  # negative: the client has none
        else:
            values = {c: value for c, value in values.items() if value.numel()}
        moves = {c: self._move(replies[c], name, kind, start[c]) for c in values}
        if not check.zero_ok:
            zero = {c: Fault(Reason.VALUE, f"{name} is all zero") for c, m in moves.items() if m.zero}
            verdict.reject(zero)
        elif kind == "weights" and self.layout.trainable >= FEWEST:
            still = [c for c, m in moves.items() if m.norm == 0.0]
            if len(still) < len(moves):  # an unchanged model would hold back the mean of the others
                verdict.reject({c: Fault(Reason.UNCHANGED, "its model has not changed") for c in still})
        factors = self._norms(step, name, kind, start, values, moves, verdict)
        if kind != "scalar" and check.direction != "none":
            left = {c: v for c, v in values.items() if c in verdict.accepted}
            self._directions(round, step, name, kind, check, start, left, verdict)
        for client, factor in factors.items() if check.clip and kind != "scalar" else ():
            if client in verdict.accepted:
                clipped = self._clipped(values[client], start[client], factor, kind)
                verdict.accepted[client] = dataclasses.replace(verdict.accepted[client], **{name: clipped})
                verdict.clipped[client] = factor

    def _norms(
        self,
        step: Step,
        name: str,
        kind: str,
        start: Mapping[str, Tensor | None],
        values: Mapping[str, Any],
        moves: Mapping[str, Move],
        verdict: Verdict,
    ) -> dict[str, float]:
        limits, cut = self.settings.norms, self.layout.trainable
        if limits is None:
            return {}
        if kind in WHOLE and cut < self.layout.size:
            buffers = {}
            for c, v in values.items():
                base = start[c]
                if c in verdict.accepted:
                    moved = distance(v[cut:], None if base is None else base[cut:])
                    buffers[c] = dataclasses.replace(moves[c], norm=moved)
            found = judge(buffers, None, 0.0, limits, "the change of its running statistics is")
            verdict.reject({c: Fault(Reason.NORM, why) for c, why in found.rejected.items()})
        left = {c: m for c, m in moves.items() if c in verdict.accepted}
        size = max((self._size(c, kind, start[c]) for c in left), default=0.0)
        subject = f"the norm of {name} is" if kind != "scalar" else f"its {name} is"
        found = judge(left, self._of_target.get((step.name, name)), size, limits, subject)
        verdict.reject({c: Fault(Reason.NORM, why) for c, why in found.rejected.items()})
        return found.factors

    def _directions(
        self,
        round: int,
        step: Step,
        name: str,
        kind: str,
        check: Check,
        start: Mapping[str, Tensor | None],
        values: Mapping[str, Tensor],
        verdict: Verdict,
    ) -> None:
        settings, clients = self.settings.directions, list(values)
        if settings is None or not clients:
            return
        within = settings.label_rate_gap
        if within is not None and not self.class_shares:
            if not self._warned and len(clients) > MAJORITY:
                log.warning("no label rates are declared, so directions are not compared (directions.label_rate_gap)")
            self._warned = True
            return
        layers = self.layout.stretches if kind in WHOLE and check.direction == "layers" else ()
        first = start[clients[0]]
        shared = all(start[c] is first for c in clients)
        vectors = [self._parameters(values[c], kind) for c in clients]
        if not shared:
            bases = [self._parameters(start[c], kind) for c in clients]
            vectors = [v if base is None else v - base for v, base in zip(vectors, bases, strict=True)]
        others, found = directions.peers(clients, self.class_shares, within), {}
        if max(map(len, others)) >= MAJORITY:
            cos = directions.layer_cosines(vectors, layers, self._parameters(first, kind) if shared else None)
            found = {clients[i]: bearing for i, bearing in directions.bearings(cos, others).items()}
        limits = directions.limits(settings.reject_below, layers, len(vectors[0]))
        offenders = self._bearings.still(step.name, name, [c for c in clients if c not in found])
        offenders += self._bearings.opposed(round, step.name, name, found, limits)
        whom = "the others" if within is None else "clients with label rates like its own"
        verdict.reject({c: Fault(Reason.DIRECTION, f"it points against {whom}") for c in offenders})

    def _start(self, client: str, name: str, kind: str, question: Any) -> Tensor | None:
        """What a field started from: the model of the question or of this round, the question's own field; None: 0."""
        if kind == "weights":
            return self._sent.get(client)
        return statistic(question, name) if kind == "statistic" else None

    def _move(self, reply: Any, name: str, kind: str, start: Tensor | None) -> Move:
        value, n = getattr(reply, name), max(1, getattr(reply, "n", 1))
        if kind == "scalar":
            return Move(float(value), n, n)
        flat = self._parameters(value, kind)
        norm = distance(flat, None if start is None else self._parameters(start, kind))
        return Move(norm, n, getattr(reply, "reach", n) if kind in WHOLE else n)

    def _parameters(self, value: Tensor | None, kind: str) -> Any:
        if value is None:
            return None
        return value[: self.layout.trainable] if kind in WHOLE else value.flatten()

    def _size(self, client: str, kind: str, start: Tensor | None) -> float:
        """The norm of the model, or of what a field started from: the measure where there are too few others."""
        if kind == "statistic" and start is not None:
            return distance(start.flatten(), None)
        model = self._sent.get(client)
        return 0.0 if model is None or kind == "scalar" else distance(model[: self.layout.trainable], None)

    def _clipped(self, value: Tensor, start: Tensor | None, factor: float, kind: str) -> Tensor:
        out, cut = value.clone(), self.layout.trainable if kind in WHOLE else None
        out[:cut] = out[:cut] * factor if start is None else torch.lerp(start[:cut], out[:cut], factor)
        return out


def statistic(question: Any, name: str) -> Tensor | None:
    """The statistic of this name in a question, where there is one: what a source's own started from."""
    value = getattr(question, name) if kinds(type(question)).get(name) == "statistic" else None
    return value if value is not None and value.numel() else None
