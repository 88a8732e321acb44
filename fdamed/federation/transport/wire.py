"""The seam for engines.

Another engine implements `Wire`: it brings bytes to named clients and collects their replies in time; at each client a
process passes these bytes to `endpoint.handle_request`. Server, validation, ledger and methods stay as they are.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from fdamed.core.errors import FdamedError
from fdamed.federation.absences import DroppedOut, Reason
from fdamed.federation.client import Step
from fdamed.federation.messages import WireError, decode, encode, pack, unpack
from fdamed.federation.questions import Reply
from fdamed.federation.storage.answers import Took
from fdamed.federation.transport.base import Transport
from fdamed.federation.transport.endpoint import UNEXPECTED
from fdamed.models.flat import Layout

log = logging.getLogger(__name__)
LONGEST_ERROR = 500
"""Characters of each part of a client's error that are shown."""


class Wire(ABC):
    """The seam for engines: brings bytes to named clients, to all at once, and collects their replies in time."""

    @abstractmethod
    def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes | DroppedOut]:
        """Client -> its reply, or why there is none."""

    @abstractmethod
    def close(self) -> None:
        """End the connections."""


class ByteTransport(Transport):
    """A transport to clients in other processes: nothing but bytes is exchanged."""

    def __init__(
        self,
        wire: Wire,
        layout: Layout,
        release: Mapping[str, frozenset[str]],
        address: Mapping[str, Any] | None = None,
    ) -> None:
        """`address`: what the header of every question has, so that a client knows the run that it belongs to."""
        super().__init__(release, layout)
        self.wire, self._release, self._address = wire, dict(release), dict(address or {})

    def release(self, client: str) -> frozenset[str]:
        return self._release[client]

    def deliver(self, client: str, step: Step, nth: int, msg: Any) -> Any:
        ((_, answer),) = self.deliver_all({client: (nth, msg)}, step)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def deliver_all(self, questions: Mapping[str, tuple[int, Any]], step: Step) -> Iterator[tuple[str, Any]]:
        replies = self.wire.exchange(self._requests(questions, step))  # which nobody holds while answers are decoded
        for client in sorted(questions):
            try:
                yield client, self._decoded(client, step, replies.pop(client))
            except (DroppedOut, FdamedError) as error:
                yield client, error
            except WireError as error:
                yield client, DroppedOut(client, str(error), Reason.MALFORMED)

    def _requests(self, questions: Mapping[str, tuple[int, Any]], step: Step) -> dict[str, bytes]:
        head = self._address | {"step": step.name, "round": self.round}
        different = {(nth, id(msg)): (nth, msg) for nth, msg in questions.values()}  # most are the same for all clients
        packed = {which: pack(head | {"nth": nth}, encode(msg)) for which, (nth, msg) in different.items()}
        return {client: packed[nth, id(msg)] for client, (nth, msg) in questions.items()}

    def _decoded(self, client: str, step: Step, reply: bytes | DroppedOut) -> Any:
        if isinstance(reply, DroppedOut):
            raise reply
        answer: Any = decode(step.answer, reply_body(client, reply), self.layout.size)
        self.remembered += remembered_in(reply)
        return answer

    def inquire(self, question: str, heads: Mapping[str, Mapping[str, Any]], body: bytes = b"") -> dict[str, Reply]:
        requests = {c: pack(self._address | {"question": question} | dict(head), body) for c, head in heads.items()}
        out = {}
        for client, reply in sorted(self.wire.exchange(requests).items()):
            try:
                if isinstance(reply, DroppedOut):
                    raise reply
                reply_body(client, reply)
                out[client] = unpack(reply)[0]
            except (DroppedOut, WireError) as error:  # an answer that cannot be read is none
                log.warning("no answer of %s to the question %s: %s", client, question, error)
        return out

    def close(self) -> None:
        self.wire.close()


def reply_body(client: str, reply: bytes) -> memoryview:
    """The content of a reply; raises the client's error if it is one."""
    head, body = unpack(reply)
    if head.get("ok") is True:
        return body
    error = head.get("error")
    if error == UNEXPECTED:
        raise DroppedOut(client, "unexpected error; the traceback is in the client's own log", Reason.FAILED)
    if not isinstance(error, list) or len(error) != 3:
        raise WireError("a reply without a header")
    raise FdamedError(*(str(text)[:LONGEST_ERROR] for text in error))


def remembered_in(reply: bytes) -> list[Took]:
    """The time that the answer of a reply had taken, if the client has remembered it."""
    took = unpack(reply)[0].get("remembered")
    if took is None:
        return []
    if not isinstance(took, list) or not all(type(t) is float and 0 <= t < math.inf for t in took) or len(took) != 2:
        raise WireError("the time of a remembered answer is not two numbers")
    return [Took(*took)]
