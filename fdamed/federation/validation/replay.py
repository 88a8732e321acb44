"""Replayed answers: a model or an update that a client has sent before, when it started from another model.

Training from another model does not end at the same bits. The comparison is exact, by digests, so an honest answer is
never taken for an old one: the same answer from the same model is none (a lost round is asked again), nor is an update
of zeros, nor a model of a few numbers, whose training may end at its optimum. Changing one bit evades this check.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fdamed.federation.messages import kinds
from fdamed.federation.validation.checks import WHOLE

FEWEST = 100
"""Numbers of a model from which on training never reaches the same bits from two starts."""


class Replays:
    """The digests of the sources' answers so far, and of the model that each started from."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], dict[str, tuple[int, str]]] = {}
        """Client, step and field -> answer -> the round in which it came, and the model from which it started."""
        self.news: list[dict[str, Any]] = []
        """Lines for the run's record, from which a resumed run restores them."""
        self._begun: dict[str, str] = {}
        """The model that each source was last sent: not every question has one."""
        self._last: tuple[Any, str] = (None, "")

    def fault(self, round: int, client: str, step: str, question: Any, reply: Any) -> str | None:
        """Why an answer is a replay; None: it is new, and known from now on."""
        if model := self._model(question):
            self._begun[client] = model
        begun = self._begun.get(client, "")
        for name, value in wholes(reply):
            if value.numel() < FEWEST:
                continue
            answer = digest(value)
            before = self._known.get((client, step, name), {}).get(answer)
            if before is None:
                line = {"round": round, "client": client, "step": step, "name": name, "answer": answer, "begun": begun}
                self.recall(line)
                self.news.append(line)
            elif before[0] < round and before[1] != begun and bool(value.any()):
                return f"{name} is that of an earlier round, bit for bit"
        return None

    def recall(self, line: Mapping[str, Any]) -> None:
        """Know one answer of this or an earlier job."""
        known = self._known.setdefault((line["client"], line["step"], line["name"]), {})
        known[line["answer"]] = (line["round"], line["begun"])

    def _model(self, question: Any) -> str:
        """The digest of the models in a question, empty without one; several clients are asked the same question."""
        if self._last[0] is not question:
            self._last = (question, "".join(digest(value) for _, value in wholes(question)))
        return self._last[1]

    def forget_question(self) -> None:
        """Release the last question, with the model in it."""
        self._last = (None, "")


def wholes(msg: Any) -> list[tuple[str, Tensor]]:
    """The models and updates in a message, by name."""
    found = [(name, getattr(msg, name)) for name, kind in kinds(type(msg)).items() if kind in WHOLE]
    return [(name, value) for name, value in found if isinstance(value, Tensor)]


def digest(value: Tensor) -> str:
    """Of the bytes of a tensor, 64 bits: enough for honest answers, which is all that is promised."""
    plain = value.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(plain.numpy().data).hexdigest()[:16]
