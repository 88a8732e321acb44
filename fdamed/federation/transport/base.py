"""How questions reach clients.

Another engine implements `Wire`: it brings bytes to named clients and collects their replies in time; at each client a
process passes these bytes to `client.handle_request`. Server, validation, ledger and methods stay as they are.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fdamed.core.errors import FdamedError
from fdamed.federation.absences import DroppedOut, Reason
from fdamed.federation.client import UNEXPECTED, Step
from fdamed.federation.messages import WireError, decode, encode, pack, unpack
from fdamed.federation.questions import Reply
from fdamed.federation.storage.answers import Took
from fdamed.models.flat import Layout

log = logging.getLogger(__name__)
LONGEST_ERROR = 500
"""Characters of each part of a client's error that are shown."""


@dataclass(frozen=True)
class Summed:
    """The mean over the clients in the place of one client's answer, and the bytes that this client has sent."""

    answer: Any
    sizes: Mapping[str, int]


class Transport(ABC):
    """How the server reaches the clients; it knows no method."""

    def __init__(self, names: Iterable[str], layout: Layout) -> None:
        self.names, self.layout, self.round = tuple(sorted(names)), layout, 0
        self.remembered: list[Took] = []
        """The times that those answers of this round had taken which were remembered, not computed."""
        self.traffic: list[tuple[str, bool, str, dict[str, int]]] = []
        """Messages beside the questions and their answers: client, whether to it, step, bytes by kind."""

    def begin(self, round: int) -> None:
        """Start a round; its number is part of the clients' random streams."""
        self.round = round
        self.remembered.clear()

    @abstractmethod
    def release(self, client: str) -> frozenset[str]:
        """The kinds that the client's privacy policy releases."""

    @abstractmethod
    def deliver(self, client: str, step: Step, nth: int, msg: Any) -> Any:
        """The client's answer to its nth question for this step in this round; raises DroppedOut without one."""

    def deliver_all(self, questions: Mapping[str, tuple[int, Any]], step: Step) -> Iterator[tuple[str, Any]]:
        """Client and its answer, or the error in its place, for each (nth, message), in the order of the names."""
        for client in sorted(questions):
            try:
                yield client, self.deliver(client, step, *questions[client])
            except (DroppedOut, FdamedError) as error:
                yield client, error

    @abstractmethod
    def inquire(self, question: str, heads: Mapping[str, Mapping[str, Any]], body: bytes = b"") -> dict[str, Reply]:
        """Ask clients a question beside the steps (questions.py); those that are gone are missing in the answers."""

    @abstractmethod
    def close(self) -> None:
        """Release the clients."""


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
        bodies = {id(msg): encode(msg) for _, msg in questions.values()}  # the same message is encoded once
        requests = {
            client: pack(self._address | {"step": step.name, "round": self.round, "nth": nth}, bodies[id(msg)])
            for client, (nth, msg) in questions.items()
        }
        replies = self.wire.exchange(requests)
        for client in sorted(questions):
            try:
                yield client, self._decoded(client, step, replies.pop(client))
            except (DroppedOut, FdamedError) as error:
                yield client, error
            except WireError as error:
                yield client, DroppedOut(client, str(error), Reason.MALFORMED)

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


class Wrapper(Transport):
    """Another transport, for subclasses that change a part of it."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner.names, inner.layout)
        self.inner, self.remembered = inner, inner.remembered

    def begin(self, round: int) -> None:
        super().begin(round)
        self.inner.begin(round)

    def release(self, client: str) -> frozenset[str]:
        return self.inner.release(client)

    def deliver(self, client: str, step: Step, nth: int, msg: Any) -> Any:
        return self.inner.deliver(client, step, nth, msg)

    def inquire(self, question: str, heads: Mapping[str, Mapping[str, Any]], body: bytes = b"") -> dict[str, Reply]:
        return self.inner.inquire(question, heads, body)

    def close(self) -> None:
        self.inner.close()
