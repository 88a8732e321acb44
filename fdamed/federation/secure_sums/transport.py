"""At the server: questions whose answers are masked, so that it learns the sources' weighted mean and nothing else.

A method that needs only sums cannot tell the difference between each source's own answer and their mean in the place
of each: that is what it gets. No method, and no other transport, knows of it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from fdamed.core.errors import FdamedError
from fdamed.federation.absences import DroppedOut, Reason
from fdamed.federation.client import Step
from fdamed.federation.messages import sizes
from fdamed.federation.secure_sums import secret_sharing
from fdamed.federation.secure_sums.client_steps import (
    FEWEST,
    Text,
    content,
    label_of,
    masked,
    send_keys,
    send_shares,
    send_unmasking,
    sign,
    text,
    threshold,
)
from fdamed.federation.secure_sums.fixed_point import LARGEST, Weighting, Words, counts_in, decode, parts_of
from fdamed.federation.secure_sums.masks import add_mask, pair_key, public
from fdamed.federation.transport.base import Summed, Transport, Wrapper
from fdamed.federation.validation.validator import fault_of

Questions = Mapping[str, tuple[int, Any]]
"""Client -> how often it was asked before, and the message."""
T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Keys:
    """What the clients of a session have sent before their answers."""

    label: str
    public: dict[str, dict[str, Any]]
    shares: dict[str, dict[str, str]]
    """Sender -> receiver -> encrypted share."""
    commitments: dict[str, str]


class SecureSums(Wrapper):
    """Another transport, on which every question to a source is answered with the mean over all that are asked."""

    def __init__(self, inner: Transport, target: str, weighting: Weighting) -> None:
        super().__init__(inner)
        self.target, self.weighting = target, weighting

    def deliver(self, client: str, step: Step, nth: int, msg: Any) -> Any:
        ((_, answer),) = self.deliver_all({client: (nth, msg)}, step)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def deliver_all(self, questions: Questions, step: Step) -> Iterator[tuple[str, Any]]:
        if not step.hidden or not questions.keys() - {self.target}:
            yield from self.inner.deliver_all(questions, step)
            return
        missing: dict[str, Exception] = {}
        try:
            answers = self._summed(questions, step, missing)
        except DroppedOut:
            yield from sorted(missing.items())
            raise
        yield from sorted((missing | answers).items())

    def _summed(self, questions: Questions, step: Step, missing: dict[str, Exception]) -> dict[str, Any]:
        """Client -> the mean in the place of its answer; `missing` gets those without an answer, and why."""
        keys = self._exchange_keys(questions, step, missing)
        parts = parts_of(step.answer, next(iter(questions.values()))[1], self.layout)
        size, asked = sum(part.size for part in parts), {c: questions[c] for c in keys.public}
        replies = dict[str, Any]()
        for client, reply in self._collect(masked(step), asked, missing, book=False).items():
            if reply.words.shape == (size,):
                replies[client] = reply
            else:
                missing[client] = DroppedOut(client, "its masked numbers have another shape", Reason.MALFORMED)
        if len(replies) < (least := threshold(len(asked))):
            what = f"{len(replies)} of {len(asked)} masked answers arrived, {least} are needed to unmask their sum"
            raise DroppedOut("sources", what, Reason.QUORUM)
        total = self._unmasked(keys, {c: r.words.numpy().view(np.uint64) for c, r in replies.items()})
        means = decode(total, step.answer, parts, replies, self.weighting, self.layout)
        if any(float(torch.as_tensor(mean).abs().max()) >= LARGEST for mean in means.values()):
            raise DroppedOut("sources", "the sum of the answers has impossible numbers", Reason.AGGREGATE)
        out = {}
        for client, reply in replies.items():
            answer = step.answer(**means, **{name: getattr(reply, name) for name in counts_in(step.answer)})
            out[client] = Summed(answer, sizes(reply))
        if fault := fault_of(answer, questions[client][1], self.layout):  # the same for all but for the counts
            raise DroppedOut("sources", f"the sum of the answers: {fault.why}", Reason.AGGREGATE)
        return out

    # --- the session --------------------------------------------------------------------------------------------------

    def _exchange_keys(self, questions: Questions, step: Step, missing: dict[str, Exception]) -> Keys:
        """Keys and shares of all clients that take part; begun again without those that send no shares."""
        label, left = label_of(self.round, step), set(questions)
        while True:
            begin = text({"label": label, "weighting": self.weighting})
            keys = self._texts(send_keys, dict.fromkeys(left, begin), missing, _keys_in)
            if len(keys) < FEWEST:
                what = f"{len(keys)} of {len(questions)} clients are there, and a sum needs {FEWEST}"
                raise DroppedOut("sources", f"{what}: of one, it would be its answer", Reason.QUORUM)
            sent = self._texts(send_shares, dict.fromkeys(keys, text(keys)), missing, _shares_for(set(keys)))
            if sent.keys() == keys.keys():
                shares = {client: entry["shares"] for client, entry in sent.items()}
                return Keys(label, keys, shares, {client: entry["commitment"] for client, entry in sent.items()})
            left = set(sent)

    def _unmasked(self, keys: Keys, arrived: Mapping[str, Words]) -> Words:
        """The sum of the masked numbers, without the masks: of those who are gone, their secret keys are rebuilt."""
        names = sorted(keys.public)
        questions = {
            client: text({"arrived": sorted(arrived), "shares": {c: s.get(client) for c, s in keys.shares.items()}})
            for client in arrived
        }
        lost: dict[str, Exception] = {}
        opened = self._texts(send_unmasking, questions, lost, _openings(set(names)))
        if len(opened) < (least := threshold(len(names))):
            first = f" ({next(iter(lost.values()))})" if lost else ""
            what = f"{len(opened)} of {len(names)} clients helped to unmask the sum, {least} are needed{first}"
            raise DroppedOut("sources", what, Reason.QUORUM)
        helpers = sorted(opened)[:least]
        total = np.zeros_like(next(iter(arrived.values())))
        for words in arrived.values():
            np.add(total, words, out=total)
        for name in names:
            secret = secret_sharing.join({1 + names.index(h): opened[h][name] for h in helpers})
            if name in arrived:
                fits = hashlib.sha256(secret).hexdigest() == keys.commitments[name]
                masks = [(secret, -1)]
            else:
                fits = public(secret).hex() == keys.public[name]["mask"]
                other = {c: bytes.fromhex(keys.public[c]["mask"]) for c in arrived}
                masks = [(pair_key(secret, other[c], keys.label, c, name), -sign(c, name)) for c in arrived if fits]
            if not fits:
                raise DroppedOut("sources", f"the shares of {name} do not fit together", Reason.MALFORMED)
            for key, direction in masks:
                add_mask(total, key, direction)
        return total

    # --- messages -----------------------------------------------------------------------------------------------------

    def _texts(
        self,
        step: Step,
        questions: Mapping[str, Text],
        missing: dict[str, Exception],
        read: Callable[[str, Any], T],
    ) -> dict[str, T]:
        """Client -> what `read` finds in its text; a client with another text is missing."""
        out = {}
        for client, reply in self._collect(step, {c: (0, q) for c, q in questions.items()}, missing).items():
            try:
                out[client] = read(client, content(reply))
            except (ValueError, KeyError, TypeError, AttributeError):
                missing[client] = DroppedOut(client, f"its answer to {step.name} cannot be read", Reason.MALFORMED)
        return out

    def _collect(
        self, step: Step, questions: Questions, missing: dict[str, Exception], book: bool = True
    ) -> dict[str, Any]:
        """The answers that arrive; the messages are noted for the ledger if `book`."""
        out: dict[str, Any] = {}
        for client, reply in self.inner.deliver_all(questions, step):
            if book:
                self.traffic.append((client, True, step.name, sizes(questions[client][1])))
            if isinstance(reply, DroppedOut | FdamedError):
                missing[client] = reply
                continue
            if book:
                self.traffic.append((client, False, step.name, sizes(reply)))
            out[client] = reply
        return out


def _keys_in(client: str, given: Any) -> dict[str, Any]:
    if any(len(bytes.fromhex(given[use])) != 32 for use in ("mask", "share")) or not isinstance(given["proof"], dict):
        raise ValueError("keys")
    return {use: given[use] for use in ("mask", "share", "proof")}


def _shares_for(names: set[str]) -> Callable[[str, Any], dict[str, Any]]:
    def read(client: str, given: Any) -> dict[str, Any]:
        if given["shares"].keys() != names - {client} or len(bytes.fromhex(given["commitment"])) != 32:
            raise ValueError("shares")
        return {"shares": given["shares"], "commitment": given["commitment"]}

    return read


def _openings(names: set[str]) -> Callable[[str, Any], dict[str, int]]:
    def read(client: str, given: Any) -> dict[str, int]:
        if given.keys() != names:
            raise ValueError("shares")
        return {name: int(share, 16) for name, share in given.items()}

    return read
