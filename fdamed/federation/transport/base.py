"""How questions reach clients.

Another engine (a real network) implements `ByteTransport`: at the server `exchange`, which brings bytes to a client and
its reply back; at each client a process that passes these bytes to `client.handle_request`. Server, validation, ledger
and methods stay as they are. `state` and `restore` are for checkpoints: an engine whose clients save their own state
returns a receipt for it instead of the state.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from fdamed.core.errors import FdamedError
from fdamed.federation.absences import DroppedOut, Reason
from fdamed.federation.client import UNEXPECTED, Step
from fdamed.federation.messages import WireError, decode, encode, pack, unpack
from fdamed.federation.storage.answers import Took
from fdamed.models.flat import Layout

LONGEST_ERROR = 500
"""Characters of each part of a client's error that are shown."""


class Transport(ABC):
    """How the server reaches the clients; it knows no method."""

    def __init__(self, names: Iterable[str], layout: Layout) -> None:
        self.names, self.layout, self.round = tuple(sorted(names)), layout, 0
        self.remembered: list[Took] = []
        """The times that those answers of this round had taken which were remembered, not computed."""

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

    @abstractmethod
    def state(self, client: str, names: tuple[str, ...] | None = None) -> bytes | None:
        """The client's state (only `names`, if given), as bytes; None: the client is gone with its state."""

    @abstractmethod
    def restore(self, client: str, state: bytes) -> None:
        """Give a client its saved state back."""

    @abstractmethod
    def close(self) -> None:
        """Release the clients."""


class ByteTransport(Transport):
    """A transport to clients in other processes: nothing but bytes is exchanged."""

    @abstractmethod
    def exchange(self, client: str, request: bytes) -> bytes:
        """The client's reply to a request; raises DroppedOut if the client cannot be reached."""

    def deliver(self, client: str, step: Step, nth: int, msg: Any) -> Any:
        request = pack({"step": step.name, "round": self.round, "nth": nth}, encode(msg))
        try:
            reply = self.exchange(client, request)
            answer: Any = decode(step.answer, reply_body(client, reply), self.layout.size)
            self.remembered += remembered_in(reply)
            return answer
        except WireError as error:
            raise DroppedOut(client, str(error), Reason.MALFORMED) from None


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

    def state(self, client: str, names: tuple[str, ...] | None = None) -> bytes | None:
        return self.inner.state(client, names)

    def restore(self, client: str, state: bytes) -> None:
        self.inner.restore(client, state)

    def close(self) -> None:
        self.inner.close()
