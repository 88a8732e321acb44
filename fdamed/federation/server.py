"""How the server asks, and hospitals that are all in this process: the plainest network."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fdamed.config.validation import Guard
from fdamed.core.rng import stream
from fdamed.federation.client import Client, Step, answer, refusal
from fdamed.federation.client_state import read_memory, write_memory
from fdamed.federation.ledger import SERVER, Ledger
from fdamed.federation.messages import sizes
from fdamed.federation.validation.checks import ASIDE, MOST, REJECTED, unusable
from fdamed.federation.validation.directions import Bearings, Shares
from fdamed.federation.validation.replay import Repeats
from fdamed.models.flat import Layout

MANY = 50
"""Sources from which on a record tells of them in sums: smallest, mean and largest instead of each."""


class DroppedOut(Exception):
    """A hospital did not answer, or its answer could not be used."""

    def __init__(self, client: str, why: str) -> None:
        super().__init__(f"{client}: {why}")
        self.client = client
        self.why = why


class Server(ABC):
    """The server's side: it may only ask, and every answer is counted, checked and named."""

    def __init__(self, clients: Iterable[str], target: str, layout: Layout, method: str) -> None:
        self.target = target
        self.sources = tuple(sorted(p for p in clients if p != target))
        self.participants = self.sources
        """The sources that take part in this round; the others are not asked."""
        self.layout = layout
        self.method = method
        self.ledger = Ledger()
        self.round = 0
        self.rounds = 0
        self.notes: dict[str, float | None] = {}
        """What a method wants to see by round: name -> value, written to metrics.jsonl."""
        self.layer_notes: list[dict[str, Any]] = []
        self.absences: list[dict[str, Any]] = []
        self.touched: set[str] = set()
        """Hospitals whose memory may have changed since it was last kept."""
        self.guard = Guard()
        self.declared: Mapping[str, int] = {}
        """Hospital -> the most images that it can count in an answer; where it is missing, nobody knows."""
        self.shares: Mapping[str, Shares] = {}
        """Hospital -> the share of each class in its images, as declared; where it is missing, nobody knows."""
        self.repeats, self.bearings = Repeats(), Bearings()
        self._strikes: dict[str, set[int]] = {}
        self._out: set[str] = set()
        """Sources whose answer was rejected or left aside in this round: they are not asked again before the next."""
        self._remarks: set[str] = set()
        self._asked: dict[tuple[str, str], int] = {}
        self._share, self._seed = 1.0, 0
        self._invited = frozenset((*self.participants, target))

    def invite(self, share: float, seed: int) -> None:
        """Let only this share of the sources, drawn anew each round and at least one, take part."""
        self._share, self._seed = share, seed

    def begin(self, round: int, rounds: int) -> None:
        """Start round 1, 2, ... of `rounds`; its number is part of every random stream."""
        self.round, self.rounds = round, rounds
        self.recall(self.absences)
        few = max(1, math.floor(self._share * len(self.sources) + 0.5))
        order = stream(self._seed, "participants", round).numpy.permutation(len(self.sources))
        away = self.quarantined
        drawn = [i for i in order if self.sources[i] not in away][:few]
        self.participants = tuple(self.sources[i] for i in sorted(drawn))
        for client in away:
            why = f"in quarantine, after rejected answers in {self.guard.strikes} rounds"
            self.absences.append({"round": round, "client": client, "step": "every step", "why": why})
        self._invited = frozenset((*self.participants, self.target))
        self._asked.clear()
        self._out.clear()
        self.repeats.forget_question()
        self.notes.clear()
        self.layer_notes.clear()

    @property
    def quarantined(self) -> tuple[str, ...]:
        """Sources whose answers were rejected in so many rounds that they are not asked again."""
        limit = self.guard.strikes
        return tuple(p for p in self.sources if limit and len(self._strikes.get(p, ())) >= limit)

    @property
    def left_out(self) -> frozenset[str]:
        """Sources that the guard keeps out of this round."""
        return frozenset((*self._out, *self.quarantined))

    def recall(self, absences: Iterable[Mapping[str, Any]]) -> None:
        """Remember the rounds in which answers of sources were rejected, from this or an earlier job."""
        for absence in absences:
            if absence["why"].startswith(REJECTED):
                self._strikes.setdefault(absence["client"], set()).add(absence["round"])

    def news(self) -> list[dict[str, Any]]:
        """What the guard has learned of the sources since this was last asked, for the run's record."""
        found = [*self.repeats.news, *self.bearings.news]
        self.repeats.news.clear()
        self.bearings.news.clear()
        return found

    def learn(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Know what the guard of an earlier job knew."""
        for line in lines:
            (self.repeats if "answer" in line else self.bearings).recall(line)

    def ask(self, client: str, step: Step, msg: Any) -> Any:
        """One question to one hospital; raises DroppedOut when no usable answer comes."""
        if client not in self._invited:
            raise DroppedOut(client, "takes no part in this round")
        if client in self._out:
            raise DroppedOut(client, "is left out of this round")
        nth = self._asked.get((client, step.name), 0)
        self._asked[(client, step.name)] = nth + 1
        self.check_release(client, step)
        fault = self._unreachable(client)
        if fault is None:
            self.ledger.note(self.round, SERVER, client, step.name, sizes(msg))
            self.touched.add(client)
            reply = self._deliver(client, step, nth, msg)
            self.ledger.note(self.round, client, SERVER, step.name, sizes(reply))
            fault = self._fault(client, step, msg, reply)
            if fault is None and client != self.target:
                fault = self.repeats.fault(self.round, client, step.name, msg, reply)
            if fault is None:
                return reply
        self._miss(client, step, fault)
        raise DroppedOut(client, fault)

    def ask_all(self, clients: Iterable[str], step: Step, msg: Any) -> dict[str, Any]:
        """The same question to several hospitals; those that drop out are left out, and named in `absences`."""
        replies = {}
        for client in sorted(clients):
            try:
                replies[client] = self.ask(client, step, msg)
            except DroppedOut:
                continue
        return replies

    def note_cosines(self, sources: list[str], cos: Tensor) -> None:
        """Keep cos (N, L) by layer, and each source's mean over the layers, for metrics and heat maps."""
        names = [s.name for s in self.layout.parameters] if cos.shape[1] > 1 else ["model"]
        for source, row in zip(sources, cos.tolist(), strict=True):
            self.notes[f"cos/{source}"] = sum(row) / len(row)
            if len(self.sources) > MANY:
                continue
            self.layer_notes += [
                {"round": self.round, "source": source, "layer": name, "cos": round(c, 6)}
                for name, c in zip(names, row, strict=True)
            ]

    def told(self) -> dict[str, float | None]:
        """The notes of the round; those on single sources in sums where there are many."""
        if len(self.sources) <= MANY:
            return dict(self.notes)
        out: dict[str, float | None] = {}
        each: dict[str, list[float]] = {}
        for name, value in self.notes.items():
            kind, _, client = name.rpartition("/")
            if kind and client in self._invited:
                each.setdefault(kind, []).extend([] if value is None else [value])
            else:
                out[name] = value
        for kind, values in each.items():
            out |= dict.fromkeys((f"{kind}/lowest", f"{kind}/mean", f"{kind}/highest"))
            if values:
                out |= {f"{kind}/lowest": min(values), f"{kind}/highest": max(values)}
                out[f"{kind}/mean"] = sum(values) / len(values)
        return out

    def reject(self, client: str, step: Step, why: str, strike: bool = True) -> None:
        """Leave an answer that came out of this round, by name, in the log and in the run's record.

        Without a `strike` it does not bring the hospital nearer to quarantine: it may be honest.
        """
        self._miss(client, step, f"{REJECTED if strike else ASIDE}{why}")

    def remark(self, text: str) -> None:
        """Say something in the log, once a run."""
        if text not in self._remarks:
            self._remarks.add(text)
            print(text, file=sys.stderr, flush=True)

    def hold_quorum(self) -> None:
        """Raise DroppedOut where too few sources are left in this round; a network that is reliable goes on."""
        return

    def shorten(self, client: str, step: Step, factor: float) -> None:
        """Say that an update is taken at this share of its length."""
        self.notes[f"shortened/{client}"] = factor
        told = f"round {self.round}: {client} is shortened to {factor:.3g} of its update in {step.name}"
        print(f"{told}: it is {1.0 / factor:.3g} times as long as may be", file=sys.stderr, flush=True)

    def some(self, name: str, count: int) -> tuple[str, ...]:
        """So many of this round's sources, drawn anew each round."""
        drawn = stream(self._seed, name, self.round).numpy.permutation(len(self.participants))[:count]
        return tuple(self.participants[i] for i in sorted(drawn))

    def _miss(self, client: str, step: Step, why: str) -> None:
        if why.startswith((REJECTED, ASIDE)) and client != self.target:
            self._out.add(client)
        self.absences.append({"round": self.round, "client": client, "step": step.name, "why": why})
        print(f"round {self.round}: {client} is left out of {step.name}: {why}", file=sys.stderr, flush=True)

    def _unreachable(self, client: str) -> str | None:
        """Why the hospital cannot even be asked; None: it can."""
        return None

    def _fault(self, client: str, step: Step, msg: Any, reply: Any) -> str | None:
        """Why an answer that left the hospital is of no use; None: it is."""
        return unusable(reply, msg, self.layout, self.declared.get(client, MOST))

    def gone(self, client: str) -> bool:
        """Whether the hospital has left for good, with what it remembered."""
        return False

    @abstractmethod
    def check_release(self, client: str, step: Step) -> None:
        """Raise when the hospital's policy does not let out what the step answers with."""

    @abstractmethod
    def _deliver(self, client: str, step: Step, nth: int, msg: Any) -> Any: ...

    @abstractmethod
    def save_memory(self, client: str, path: Path) -> bool:
        """Let the hospital write its memory to this file; False: it remembers nothing, or is gone."""

    @abstractmethod
    def load_memory(self, client: str, path: Path) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Let the hospitals go."""


class InProcess(Server):
    """All hospitals in this process: messages are passed as they are, bytes are counted from shapes."""

    def __init__(self, clients: Mapping[str, Client], target: str, method: str) -> None:
        layout = next(iter(clients.values())).model.layout
        super().__init__(clients, target, layout, method)
        self._clients = dict(clients)

    def check_release(self, client: str, step: Step) -> None:
        refused = refusal(step, self._clients[client].release, client, self.method)
        if refused:
            raise refused

    def _deliver(self, client: str, step: Step, nth: int, msg: Any) -> Any:
        return answer(self._clients[client], step, self.round, nth, msg)

    def save_memory(self, client: str, path: Path) -> bool:
        memory = self._clients[client].memory
        if memory:
            write_memory(memory, path)
        return bool(memory)

    def load_memory(self, client: str, path: Path) -> None:
        self._clients[client].memory = read_memory(path)

    def close(self) -> None:
        self._clients.clear()
