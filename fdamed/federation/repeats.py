"""Who says again what it said before: a model or an update that a hospital once sent, in answer to another question.

Whoever trains from another model does not end at the same bits. The comparison is exact, by digests, so that an honest
answer is never taken for an old one: the same answer to the same question is none (a lost round is asked again), nor
is an update of nothing but zeros. A liar who changes one bit of an old answer is not found here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fdamed.federation.guard import REJECTED, WHOLE
from fdamed.federation.wire import kinds


class Repeats:
    """The digests of the sources' answers so far, and of what each was the answer to."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], dict[str, str]] = {}
        self.news: list[dict[str, Any]] = []
        """Lines for the run's record, with which a run that is taken up again knows them too."""
        self._last: tuple[Any, str] = (None, "")

    def fault(self, round: int, party: str, step: str, question: Any, reply: Any) -> str | None:
        """Why an answer is one that was given before; None: it is new, and known from now on."""
        for name, kind in kinds(type(reply)).items():
            value = getattr(reply, name)
            if kind not in WHOLE or not isinstance(value, Tensor) or not value.numel():
                continue
            answer, asked = digest(value), self._asked(question)
            before = self._known.get((party, step, name), {}).get(answer)
            if before is None:
                line = {"round": round, "party": party, "step": step, "name": name, "answer": answer, "asked": asked}
                self.recall(line)
                self.news.append(line)
            elif before != asked and bool(value.any()):
                return f"{REJECTED}{name} is that of an earlier round, bit for bit"
        return None

    def recall(self, line: Mapping[str, Any]) -> None:
        """Know one answer of this or an earlier job."""
        self._known.setdefault((line["party"], line["step"], line["name"]), {})[line["answer"]] = line["asked"]

    def _asked(self, question: Any) -> str:
        """The digest of a question's numbers; several hospitals are asked the same one."""
        if self._last[0] is not question:
            values = [getattr(question, name) for name in kinds(type(question))]
            self._last = (question, "".join(digest(v) for v in values if isinstance(v, Tensor)))
        return self._last[1]

    def forget_question(self) -> None:
        """Let the last question go, with the model in it."""
        self._last = (None, "")


def digest(value: Tensor) -> str:
    """Of the bytes of a tensor, 64 bits: enough for honest answers, which is all that is promised."""
    plain = value.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(plain.numpy().data).hexdigest()[:16]
