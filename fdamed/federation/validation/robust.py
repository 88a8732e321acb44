"""Robust aggregation (opt-in): compares the sources' answers with each other, field by field, by norm and direction."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fdamed.config.train import Directions, Norms, Validation
from fdamed.federation.absences import Fault, Reason
from fdamed.federation.client import Step
from fdamed.federation.messages import WHOLE_MODEL, Check, checks, kinds, marked, starting_model, tensors
from fdamed.federation.validation.directions import (
    MAJORITY,
    DirectionHistory,
    Shares,
    layer_cosines,
    limits,
    peers,
    similarities,
)
from fdamed.federation.validation.norms import Move, distance, judge
from fdamed.models.flat import Layout

if TYPE_CHECKING:
    from fdamed.federation.validation.validator import Verdict

FEWEST = 100
"""Numbers of a model from which on training never reaches the same bits from two starts."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Field:
    """One field of the sources' answers to a step."""

    step: str
    name: str
    kind: str
    check: Check
    cut: int | None
    """Number of parameters of a whole model; what follows are buffers."""
    start: dict[str, Tensor | None]
    """Client -> what its value started from; None: from 0."""
    values: dict[str, Any]
    moves: dict[str, Move]

    def parameters(self, value: Tensor) -> Tensor:
        return value.flatten()[: self.cut]


class RobustAggregation:
    """The comparisons, and what they keep of this round and of earlier ones."""

    def __init__(self, layout: Layout, target: str) -> None:
        self.layout, self.target = layout, target
        self.directions = DirectionHistory()
        self._sent: dict[str, Tensor] = {}
        """The model that each client was last sent in this round."""
        self._of_target: dict[tuple[str, str], Move] = {}
        """(step, field) -> the target's own move in this round, with which sources are compared, too."""
        self._warned = False

    def begin(self) -> None:
        """Start a round."""
        self._sent.clear()
        self._of_target.clear()

    def check(
        self,
        round: int,
        step: Step,
        questions: Mapping[str, Any],
        verdict: Verdict,
        settings: Validation,
        shares: Mapping[str, Shares],
    ) -> None:
        """Reject and clip in `verdict` what differs too much from the others."""
        for client in verdict.accepted:
            if (model := starting_model(questions[client])) is not None:
                self._sent[client] = model
        annotated = checks(step.answer)
        for name, kind in kinds(step.answer).items():
            if kind not in (*WHOLE_MODEL, "statistic") and (kind != "scalar" or name not in annotated):
                continue
            field = self._field(step.name, name, kind, annotated.get(name, Check()), questions, verdict)
            self._reject_unmoved(field, verdict)
            factors = self._check_norms(field, settings.norms, verdict) if settings.norms else {}
            if settings.directions and kind != "scalar" and field.check.direction != "none":
                self._check_directions(round, field, settings.directions, shares, verdict)
            if field.check.clip and kind != "scalar":
                _clip(field, {c: f for c, f in factors.items() if c in verdict.accepted}, verdict)

    def _field(
        self, step: str, name: str, kind: str, check: Check, questions: Mapping[str, Any], verdict: Verdict
    ) -> Field:
        values = {c: getattr(reply, name) for c, reply in verdict.accepted.items()}
        start: dict[str, Tensor | None] = dict.fromkeys(values)
        for client, value in values.items() if kind in ("weights", "statistic") else ():
            asked = tensors(questions[client], "statistic").get(name)
            base = self._sent.get(client) if kind == "weights" else asked
            if base is not None and base.shape == value.shape and base.numel():
                start[client] = base
        cut = self.layout.trainable if kind in WHOLE_MODEL else None
        field = Field(step, name, kind, check, cut, start, values, {})
        moves = {c: _move(field, c, verdict.accepted[c]) for c in values}
        if self.target in moves:
            self._of_target[step, name] = moves.pop(self.target)
            del values[self.target]
        for client, value in list(values.items()):
            if value < 0.0 if kind == "scalar" else not value.numel():  # the client has none
                del values[client], moves[client]
        return replace(field, moves=moves)

    def _reject_unmoved(self, field: Field, verdict: Verdict) -> None:
        if not field.check.zero_ok:
            zero = [c for c, move in field.moves.items() if move.zero]
            verdict.reject({c: Fault(Reason.VALUE, f"{field.name} is all zero") for c in zero})
        elif field.kind == "weights" and self.layout.trainable >= FEWEST:
            still = [c for c, move in field.moves.items() if move.norm == 0.0]
            if len(still) < len(field.moves):  # an unchanged model would hold back the mean of the others
                verdict.reject({c: Fault(Reason.UNCHANGED, "its model has not changed") for c in still})

    def _check_norms(self, field: Field, limits: Norms, verdict: Verdict) -> dict[str, float]:
        """Reject what is too large; the factors by which the rest is to be clipped."""
        if field.cut is not None and field.cut < self.layout.size:
            buffers = {}
            for client in (c for c in field.moves if c in verdict.accepted):
                start, value = field.start[client], field.values[client]
                norm = distance(value[field.cut :], None if start is None else start[field.cut :])
                buffers[client] = replace(field.moves[client], norm=norm)
            found = judge(buffers, None, 0.0, limits, "the change of its running statistics is")
            verdict.reject({c: Fault(Reason.NORM, why) for c, why in found.rejected.items()})
        moves = {c: move for c, move in field.moves.items() if c in verdict.accepted}
        size = max((self._size(field, client) for client in moves), default=0.0)
        subject = f"its {field.name} is" if field.kind == "scalar" else f"the norm of {field.name} is"
        found = judge(moves, self._of_target.get((field.step, field.name)), size, limits, subject)
        verdict.reject({c: Fault(Reason.NORM, why) for c, why in found.rejected.items()})
        return found.factors

    def _size(self, field: Field, client: str) -> float:
        """The norm of the model, or of what a statistic started from: the reference if there are too few others."""
        start, model = field.start[client], self._sent.get(client)
        if field.kind == "statistic" and start is not None:
            return distance(start.flatten(), None)
        return 0.0 if model is None or field.kind == "scalar" else distance(model[: self.layout.trainable], None)

    def _check_directions(
        self, round: int, field: Field, settings: Directions, shares: Mapping[str, Shares], verdict: Verdict
    ) -> None:
        """Reject updates that point against those of the client's peers."""
        clients, gap = [c for c in field.values if c in verdict.accepted], settings.label_rate_gap
        if not clients:
            return
        if gap is not None and not shares:
            if not self._warned and len(clients) > MAJORITY:
                log.warning("no label rates are declared, so directions are not compared (directions.label_rate_gap)")
                self._warned = True
            return
        layers = self.layout.stretches if field.cut is not None and field.check.direction == "layers" else ()
        vectors = [field.parameters(field.values[c]) for c in clients]
        bases = [field.start[c] for c in clients]
        common = bases[0] if all(base is bases[0] for base in bases) else None
        if common is None:
            pairs = zip(vectors, bases, strict=True)
            vectors = [v if base is None else v - field.parameters(base) for v, base in pairs]
        others, found = peers(clients, shares, gap), {}
        if max(map(len, others)) >= MAJORITY:
            cos = layer_cosines(vectors, layers, None if common is None else field.parameters(common))
            found = {clients[i]: similarity for i, similarity in similarities(cos, others).items()}
        lowest = limits(settings.reject_below, layers, len(vectors[0]))
        opposed = self.directions.still_excluded(field.step, field.name, [c for c in clients if c not in found])
        opposed += self.directions.excluded(round, field.step, field.name, found, lowest)
        compared = "the others" if gap is None else "clients with label rates like its own"
        verdict.reject({c: Fault(Reason.DIRECTION, f"it points against {compared}") for c in opposed})


def _move(field: Field, client: str, reply: Any) -> Move:
    """How far a client's value is from where it started."""
    value, start, n = field.values[client], field.start[client], max(1, marked(reply, "images", 1))
    if field.kind == "scalar":
        return Move(float(value), n, n)
    norm = distance(field.parameters(value), None if start is None else field.parameters(start))
    return Move(norm, n, marked(reply, "nominal_step", n) if field.cut is not None else n)


def _clip(field: Field, factors: Mapping[str, float], verdict: Verdict) -> None:
    """Replace values by shorter copies of them."""
    for client, factor in factors.items():
        start, out = field.start[client], field.values[client].clone()
        own = out[: field.cut]
        out[: field.cut] = own * factor if start is None else torch.lerp(start[: field.cut], own, factor)
        verdict.accepted[client] = replace(verdict.accepted[client], **{field.name: out})
        verdict.clipped[client] = min(verdict.clipped.get(client, 1.0), factor)
