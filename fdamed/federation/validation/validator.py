"""Validation of answers before any method sees them, driven by the kinds of message fields and their Check.

The server passes every answer through `Validator.check`; no method calls it and none can bypass it. The checks in this
file are always on, and no honest client can fail them. Robust aggregation (robust.py) is opt-in.

A replay is a model or an update that a client has sent before, when it started from another model: training from
another model does not end at the same bits. Digests are compared, so a client that changes one bit is not detected, and
an honest one is never rejected: the same answer from the same model is allowed (a lost round is repeated), and so are
an update of zeros and a model of a few numbers, which may reach its optimum twice.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fdamed.config.train import Validation
from fdamed.federation.absences import Fault, Reason
from fdamed.federation.client import Step
from fdamed.federation.messages import ROWS, WHOLE_MODEL, Check, checks, kinds, marked, starting_model, tensors
from fdamed.federation.validation.directions import Shares
from fdamed.federation.validation.robust import FEWEST, RobustAggregation
from fdamed.models.flat import Layout

MOST = 10**9
"""Largest count of anything where the client has declared no number of images."""
PLAIN = Check()
COLUMNS = 1024


@dataclass
class Verdict:
    """The accepted answers, the faults of the rejected ones, and the factors of those that were clipped."""

    accepted: dict[str, Any]
    rejected: dict[str, Fault] = field(default_factory=dict)
    clipped: dict[str, float] = field(default_factory=dict)

    def reject(self, faults: Mapping[str, Fault]) -> None:
        for client, fault in faults.items():
            self.rejected[client] = fault
            del self.accepted[client]


class Validator:
    """The checks of one run, and what they know of earlier answers."""

    def __init__(self, layout: Layout, target: str, settings: Validation | None = None) -> None:
        self.layout, self.target, self.settings = layout, target, settings or Validation()
        self.images: Mapping[str, int] = {}
        """Client -> the most images it can count, where it has declared them."""
        self.class_shares: Mapping[str, Shares] = {}
        """Client -> the share of each class in its images, where it has declared them."""
        self._strikes: dict[str, set[int]] = {}
        self._replays, self._robust = Replays(), RobustAggregation(layout, target)

    def begin(self) -> None:
        """Start a round."""
        self._replays.begin()
        self._robust.begin()

    def quarantined(self, sources: Iterable[str]) -> tuple[str, ...]:
        """Sources whose answers were rejected in so many rounds that they are not asked again."""
        limit = self.settings.strikes
        return tuple(s for s in sources if limit and len(self._strikes.get(s, ())) >= limit)

    def recall(self, absences: Iterable[Mapping[str, Any]]) -> None:
        """Count the rounds in which answers were rejected, in this or an earlier job."""
        for absence in absences:
            if Reason(absence["reason"]).strikes:
                self._strikes.setdefault(absence["client"], set()).add(absence["round"])

    def news(self) -> list[dict[str, Any]]:
        """What was learned of the sources since the last call, for the run's record."""
        found = [*self._replays.news, *self._robust.directions.news]
        self._replays.news.clear()
        self._robust.directions.news.clear()
        return found

    def learn(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Restore what an earlier job has learned."""
        for line in lines:
            (self._replays if "answer" in line else self._robust.directions).recall(line)

    def check(self, round: int, step: Step, questions: Mapping[str, Any], replies: Mapping[str, Any]) -> Verdict:
        """Which of the answers to one step, asked of several clients, may be used."""
        verdict = Verdict(dict(replies))
        for client, reply in replies.items():
            if fault := self._fault(round, step, client, questions[client], reply):
                verdict.reject({client: fault})
        if self.settings.norms is not None or self.settings.directions is not None:
            self._robust.check(round, step, questions, verdict, self.settings, self.class_shares)
        return verdict

    def _fault(self, round: int, step: Step, client: str, question: Any, reply: Any) -> Fault | None:
        """What is wrong with one answer by itself."""
        if fault := fault_of(reply, question, self.layout, self.images.get(client, MOST)):
            return fault
        if client == self.target:
            return None
        if marked(reply, "images", 1) == 0 and tensors(reply, *WHOLE_MODEL):
            return Fault(Reason.NO_IMAGES, "it trained on no image")
        return self._replays.fault(round, client, step.name, question, reply)


def fault_of(reply: Any, question: Any, layout: Layout, images: int = MOST) -> Fault | None:
    """What is wrong with the fields of an answer; None: nothing. `images`: how many the client has declared."""
    annotated = checks(type(reply))
    for name, kind in kinds(type(reply)).items():
        value, check = getattr(reply, name), annotated.get(name, PLAIN)
        if kind == "count":
            if type(value) is not int or not check.positive <= value <= (images if check.images else MOST):
                return Fault(Reason.COUNT, f"{name} is not a possible count")
        elif kind == "scalar":
            if not isinstance(value, float | int) or not math.isfinite(value):
                return Fault(Reason.NOT_FINITE, f"{name} is not finite")
            if check.positive and not value > 0.0:
                return Fault(Reason.VALUE, f"{name} is not above 0")
        elif not isinstance(value, Tensor):
            return Fault(Reason.MALFORMED, f"{name} is not a tensor")
        elif fault := _tensor_fault(name, value, kind, check, question, layout):
            return fault
    return None


def _tensor_fault(name: str, value: Tensor, kind: str, check: Check, question: Any, layout: Layout) -> Fault | None:
    shape = (layout.size,) if kind in WHOLE_MODEL else check.shape(question, layout) if check.shape else None
    if shape is not None and not _fits(value, shape, check):
        wanted = _described(shape, check.dtype)
        return Fault(Reason.SHAPE, f"{name} has shape {_described(value.shape, value.dtype)}, not {wanted}")
    # A finite sum proves finite entries; only a suspicious one is looked at closely.
    if value.is_floating_point() and not torch.isfinite(value.sum()) and not torch.isfinite(value).all():
        return Fault(Reason.NOT_FINITE, f"{name} has entries that are not finite")
    if kind not in WHOLE_MODEL and not check.module:
        return None
    own = check.module(layout) if check.module else layout
    if not len(own.variances) or value.numel() != own.size:
        return None
    found = value[own.variances]
    if kind == "update":  # it leads from the model of the question
        base = starting_model(question)
        if base is None or base.shape != value.shape:
            return None
        found = found + base[own.variances]
    return Fault(Reason.VARIANCE, f"{name} has a negative running variance") if float(found.min()) < 0.0 else None


def _fits(value: Tensor, shape: tuple[int, ...], check: Check) -> bool:
    """Whether a tensor has this shape and the field's dtype; nothing is ever broadcast."""
    if value.dtype != check.dtype or (check.optional and not value.numel()):
        return value.dtype == check.dtype
    wanted = tuple(max(1, n) if ask == ROWS else ask for n, ask in zip(value.shape, shape, strict=False))
    return len(value.shape) == len(shape) and tuple(value.shape) == wanted


def _described(shape: Iterable[int], dtype: torch.dtype) -> str:
    return f"{list(shape)} of {str(dtype).removeprefix('torch.')}"


class Replays:
    """The digests of the sources' answers so far, and of the model that each answer started from."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], dict[str, tuple[int, str]]] = {}
        """Client, step and field -> answer -> the round in which it came, and the model from which it started."""
        self.news: list[dict[str, Any]] = []
        """Lines for the run's record, from which a resumed run restores them."""
        self._started: dict[str, str] = {}
        """The model that each source was last sent: not every question has one."""
        self._last: tuple[Any, str] = (None, "")
        """The last question and the digest of its models: several clients are asked the same."""

    def begin(self) -> None:
        """Start a round: release the last question, with the model in it."""
        self._last = (None, "")

    def fault(self, round: int, client: str, step: str, question: Any, reply: Any) -> Fault | None:
        """The fault of a replayed answer; None: it is new, and known from now on."""
        if self._last[0] is not question:
            self._last = (question, "".join(map(digest, tensors(question, *WHOLE_MODEL).values())))
        if self._last[1]:
            self._started[client] = self._last[1]
        started = self._started.get(client, "")
        for name, value in tensors(reply, *WHOLE_MODEL).items():
            if value.numel() < FEWEST:
                continue
            answer = digest(value)
            before = self._known.get((client, step, name), {}).get(answer)
            if before is None:
                line = {"round": round, "client": client, "step": step, "name": name}
                self.recall(line | {"answer": answer, "begun": started})
                self.news.append(line | {"answer": answer, "begun": started})
            elif before[0] < round and before[1] != started and bool(value.any()):
                return Fault(Reason.REPLAY, f"{name} is that of an earlier round, bit for bit")
        return None

    def recall(self, line: Mapping[str, Any]) -> None:
        """Restore one line of this or an earlier job."""
        known = self._known.setdefault((line["client"], line["step"], line["name"]), {})
        known[line["answer"]] = (line["round"], line["begun"])


def digest(value: Tensor) -> str:
    """A 64-bit digest of a tensor's bytes, which changes with every bit.

    The words are added up in columns before they are hashed: hashing all of them would take 6 % of a round.
    """
    plain = value.detach().cpu().contiguous().numpy().reshape(-1).view(np.uint8)
    cut = plain.size - plain.size % (8 * COLUMNS)
    columns = plain[:cut].view(np.uint64).reshape(-1, COLUMNS).sum(axis=0, dtype=np.uint64)  # modulo 2**64
    return hashlib.sha256(columns.tobytes() + plain[cut:].tobytes()).hexdigest()[:16]
