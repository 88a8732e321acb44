"""How questions reach clients: the interface, its plainest form (clients in this process), and a wrapper of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fdamed.core.errors import FdamedError
from fdamed.federation.absences import DroppedOut
from fdamed.federation.client import Client, Step, answer
from fdamed.federation.questions import Home, Memory, Reply, answer_question
from fdamed.federation.storage.answers import Took
from fdamed.federation.storage.client_state import pack_state, unpack_state
from fdamed.models.flat import Layout


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


class InProcess(Transport):
    """All clients in this process: messages are passed as they are."""

    def __init__(self, clients: Mapping[str, Client]) -> None:
        super().__init__(clients, next(iter(clients.values())).model.layout)
        self.clients, self.homes = OrderedDict(clients), dict.fromkeys(clients, Home(self.layout))

    def release(self, client: str) -> frozenset[str]:
        return self.clients[client].release

    def deliver(self, client: str, step: Step, nth: int, msg: Any) -> Any:
        reply = answer(self.clients[client], step, self.round, nth, msg)
        if took := self.clients[client].remembered:
            self.remembered.append(took)
        return reply

    def state(self, client: str, names: tuple[str, ...] | None = None) -> bytes:
        """The client's state (only `names`, if given), as bytes."""
        return pack_state(self.clients[client].memory, names)

    def restore(self, client: str, state: bytes) -> None:
        """Give a client its state back."""
        self.clients[client].memory = unpack_state(state, f"client {client}")

    def inquire(self, question: str, heads: Mapping[str, Mapping[str, Any]], body: bytes = b"") -> dict[str, Reply]:
        return {c: answer_question(self.homes[c], self._memory(c), question, heads[c], body) for c in sorted(heads)}

    def _memory(self, client: str) -> Memory:
        here = self.clients[client]
        return Memory(lambda: here.memory, lambda state: setattr(here, "memory", state))

    def close(self) -> None:
        self.clients.clear()


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
