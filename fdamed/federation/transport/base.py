"""What a transport is: it brings questions to clients and answers back, and knows no method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from fdamed.federation.client import Step
from fdamed.models.flat import Layout


class Transport(ABC):
    """How the server reaches the clients."""

    quorum = 0
    """Sources without which a round is lost; 0: no limit."""

    def __init__(self, names: Iterable[str], layout: Layout) -> None:
        self.names = tuple(sorted(names))
        self.layout = layout
        self.round = 0

    def begin(self, round: int) -> None:
        """Start a round; its number is part of the clients' random streams."""
        self.round = round

    @abstractmethod
    def release(self, client: str) -> frozenset[str]:
        """Kinds of knowledge that the client's policy lets out."""

    @abstractmethod
    def deliver(self, client: str, step: Step, nth: int, msg: Any) -> Any:
        """The client's answer to its nth question for this step in this round; raises DroppedOut without one."""

    @abstractmethod
    def state(self, client: str, names: tuple[str, ...] | None = None) -> bytes | None:
        """What the client remembers (only `names`, if given), as bytes; None: the client is gone with its state."""

    @abstractmethod
    def restore(self, client: str, state: bytes) -> None:
        """Give a client back what it remembered."""

    @abstractmethod
    def close(self) -> None:
        """Release the clients."""


class Wrapper(Transport):
    """Another transport with something changed."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner.names, inner.layout)
        self.inner, self.quorum = inner, inner.quorum

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


class Altered(Wrapper):
    """A transport on which clients answer otherwise: for tests, benchmarks and attack studies.

    `answer(client, step, nth, msg)` takes the place of `inner.deliver`, which it may call.
    """

    def __init__(self, inner: Transport, answer: Callable[[str, Step, int, Any], Any]) -> None:
        super().__init__(inner)
        self._answer = answer

    def deliver(self, client: str, step: Step, nth: int, msg: Any) -> Any:
        return self._answer(client, step, nth, msg)
