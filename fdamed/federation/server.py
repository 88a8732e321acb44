"""The server: what a method's `round` talks to. Every message is counted, and every answer is validated."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from fdamed.config.train import Validation
from fdamed.core.errors import FdamedError
from fdamed.core.rng import Stream, stream
from fdamed.federation.absences import DroppedOut, Reason
from fdamed.federation.client import Step, check_release
from fdamed.federation.messages import sizes
from fdamed.federation.transport.base import Summed, Transport
from fdamed.federation.validation.validator import Validator
from fdamed.ops.aggregation import cosines

SERVER = "server"
MANY = 50
"""Above this number of sources, their values are logged as minimum, mean and maximum."""
log = logging.getLogger(__name__)


class Ledger:
    """Messages and bytes by round, sender, receiver, step and kind."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, str, str, str, str], tuple[int, int]] = {}
        self._settled: list[dict[str, Any]] = []

    def note(self, round: int, sender: str, receiver: str, step: str, sizes: Mapping[str, int]) -> None:
        """Count one message with so many bytes of each kind."""
        for kind, n in sizes.items():
            key = (round, sender, receiver, step, kind)
            total, messages = self._counts.get(key, (0, 0))
            self._counts[key] = (total + n, messages + 1)

    def settle(self) -> list[dict[str, Any]]:
        """The lines since the last call."""
        new = self._lines()
        self._counts.clear()
        self._settled += new
        return new

    def lines(self) -> list[dict[str, Any]]:
        """All lines, sorted within a round, so that they do not depend on the order of the clients."""
        return [*self._settled, *self._lines()]

    def _lines(self) -> list[dict[str, Any]]:
        names = ("round", "from", "to", "step", "kind")
        return [
            dict(zip(names, key, strict=True)) | {"bytes": n, "messages": messages}
            for key, (n, messages) in sorted(self._counts.items())
        ]

    def total(self, *, sender: str | None = None, receiver: str | None = None, kind: str | None = None) -> int:
        """Bytes of this sender, receiver and kind; None: of all."""
        wanted = {"from": sender, "to": receiver, "kind": kind}
        return sum(line["bytes"] for line in self.lines() if all(v in (None, line[k]) for k, v in wanted.items()))


class Server:
    """The server's side of a federation: `ask`, `ask_all`, `ask_each`, `log`."""

    def __init__(
        self, transport: Transport, target: str, method: str, validation: Validation | None = None, quorum: int = 0
    ) -> None:
        self.transport, self.target, self.method, self.quorum = transport, target, method, quorum
        self.layout = transport.layout
        self.sources = tuple(name for name in transport.names if name != target)
        self.participants = self.sources
        """The sources that take part in this round; the others are not asked."""
        self.validator = Validator(self.layout, target, validation)
        self.ledger = Ledger()
        self.round = self.rounds = self.usable = 0
        """This round, all rounds, and how many answers of this round could be used."""
        self.notes: dict[str, float | None] = {}
        """The values that were logged in this round, for metrics.jsonl."""
        self.unlogged: frozenset[str] = frozenset()
        """Names of values that are not logged."""
        self.layer_notes: list[dict[str, Any]] = []
        self.absences: list[dict[str, Any]] = []
        self.heard: set[str] = set()
        """Clients of which an answer of this round could be used."""
        self.touched: set[str] = set()
        """Clients whose state may have changed since it was last saved."""
        self._excluded_now: set[str] = set()
        """Sources whose answer was excluded in this round: they are not asked again before the next."""
        self._asked: dict[tuple[str, str], int] = {}
        self._answered: set[tuple[str, str]] = set()
        """Clients with the steps that they have answered in this run."""
        self._share, self._seed = 1.0, 0
        self._invited = frozenset(transport.names)

    def invite(self, share: float, seed: int) -> None:
        """Let only this share of the sources, drawn anew each round and at least one, take part."""
        self._share, self._seed = share, seed

    def begin(self, round: int, rounds: int) -> None:
        """Start round 1, 2, ... of `rounds`; its number is part of every random stream."""
        self.round, self.rounds, self.usable = round, rounds, 0
        self.validator.recall(self.absences)
        quarantined = self.quarantined
        count = max(1, math.floor(self._share * len(self.sources) + 0.5))  # as Train.participants
        order = self.stream("participants", round).numpy.permutation(len(self.sources))
        drawn = [i for i in order if self.sources[i] not in quarantined][:count]
        self.participants = tuple(self.sources[i] for i in sorted(drawn))
        self._invited = frozenset((*self.participants, self.target))
        for client in quarantined:
            why = f"quarantined after rejected updates in {self.validator.settings.strikes} rounds"
            self._miss(client, "every step", Reason.QUARANTINED, why)
        for last_round in (self._asked, self._excluded_now, self.heard, self.notes, self.layer_notes):
            last_round.clear()
        self.validator.begin()
        self.transport.begin(round)

    @property
    def quarantined(self) -> tuple[str, ...]:
        """Sources that are no longer asked, after too many rejected updates."""
        return self.validator.quarantined(self.sources)

    def stream(self, *names: str | int) -> Stream:
        """The random stream of these names under the run's seed."""
        return stream(self._seed, *names)

    def draw(self, name: str, count: int) -> tuple[str, ...]:
        """So many of this round's sources, drawn anew each round."""
        drawn = self.stream(name, self.round).numpy.permutation(len(self.participants))[:count]
        return tuple(self.participants[i] for i in sorted(drawn))

    def close(self) -> None:
        self.transport.close()

    def check_release(self, client: str, step: Step) -> None:
        """Raise if the client's privacy policy does not release the answer to a step."""
        check_release(step, self.transport.release(client), client, self.method)

    def ask(self, client: str, step: Step, msg: Any) -> Any:
        """One question to one client; raises DroppedOut without a usable answer."""
        answers, missing = self._gather({client: msg}, step)
        if client in missing:
            raise missing[client]
        return answers[client]

    def ask_all(self, clients: Iterable[str], step: Step, msg: Any) -> dict[str, Any]:
        """The same question to several clients; the usable answers, in the order of the clients' names."""
        return self.ask_each(dict.fromkeys(clients, msg), step)

    def ask_each(self, questions: Mapping[str, Any], step: Step) -> dict[str, Any]:
        """One question for each client; the usable answers, in the order of the clients' names."""
        answers, _ = self._gather(questions, step)
        if set(questions) - {self.target}:
            self._check_quorum()
        return answers

    def _gather(self, questions: Mapping[str, Any], step: Step) -> tuple[dict[str, Any], dict[str, DroppedOut]]:
        """The accepted answers, and why the others are missing."""
        replies: dict[str, Any] = {}
        missing: dict[str, DroppedOut] = {}
        asked: dict[str, tuple[int, Any]] = {}
        for client in sorted(questions):
            try:
                asked[client] = self._numbered(client, step), questions[client]
            except DroppedOut as absent:
                missing[client] = absent
        summed = set[str]()
        try:
            for client, reply in self.transport.deliver_all(asked, step):
                try:
                    replies[client] = self._booked(client, step, asked[client][1], reply)
                    summed |= {client} if isinstance(reply, Summed) else set()
                except DroppedOut as absent:
                    missing[client] = absent
        finally:
            self._book_traffic()
        verdict = self.validator.check(self.round, step, questions, replies)
        for client, (reason, why) in verdict.rejected.items():
            self._miss(client, step.name, reason, why)
            missing[client] = DroppedOut(client, why, reason)
        for client in sorted(summed & set(verdict.rejected)):
            if verdict.rejected[client].reason is not Reason.NO_IMAGES:  # those have no weight in a sum
                raise DroppedOut(
                    "sources", f"their sum has the answer of {client}, which was rejected", Reason.AGGREGATE
                )
        for client, factor in verdict.clipped.items():
            name = f"clipped/{client}"
            self.notes[name] = min(self.notes.get(name) or 1.0, factor)
            log.warning("round %d: the update of %s in %s is clipped to %.3g", self.round, client, step.name, factor)
        self.usable += len(verdict.accepted)
        self.heard |= set(verdict.accepted)
        return verdict.accepted, missing

    def _numbered(self, client: str, step: Step) -> int:
        """How often the client was asked for this step in this round; raises DroppedOut if it must not be asked."""
        if client not in self._invited:
            raise DroppedOut(client, "takes no part in this round", Reason.NOT_INVITED)
        if client in self._excluded_now:
            raise DroppedOut(client, "was excluded earlier in this round", Reason.NOT_INVITED)
        nth = self._asked.get((client, step.name), 0)
        self._asked[(client, step.name)] = nth + 1
        self.check_release(client, step)
        return nth

    def _booked(self, client: str, step: Step, msg: Any, found: Any) -> Any:
        """The answer as it has arrived; both messages are counted in the ledger.

        An error is the study's in the first answer to a step, and later the client's own.
        """
        asked, reply = True, found
        if isinstance(found, FdamedError) and (client, step.name) in self._answered:
            found = DroppedOut(client, found.what, Reason.FAILED)
        if isinstance(found, DroppedOut):
            asked, reply = found.asked, found.reply
            self._miss(client, step.name, found.reason, found.why)
        elif isinstance(found, FdamedError):
            reply = None
        else:
            self._answered.add((client, step.name))
        if asked:
            self.touched.add(client)
            self.ledger.note(self.round, SERVER, client, step.name, sizes(msg))
        if isinstance(reply, Summed):
            self.ledger.note(self.round, client, SERVER, step.name, reply.sizes)
            return reply.answer
        if reply is not None:
            self.ledger.note(self.round, client, SERVER, step.name, sizes(reply))
        if isinstance(found, DroppedOut | FdamedError):
            raise found
        return reply

    def _book_traffic(self) -> None:
        """Count what a transport has exchanged with clients beside the questions and their answers."""
        for client, to_client, step, by_kind in self.transport.traffic:
            sender, receiver = (SERVER, client) if to_client else (client, SERVER)
            self.ledger.note(self.round, sender, receiver, step, by_kind)
            self.touched.add(client)
        self.transport.traffic.clear()

    def _miss(self, client: str, step: str, reason: Reason, why: str) -> None:
        """Record that a client is missing from a step."""
        if reason.excludes and client != self.target:
            self._excluded_now.add(client)
        self.absences.append({"round": self.round, "client": client, "step": step, "reason": reason.value, "why": why})
        if reason is not Reason.QUARANTINED:
            log.warning("round %d: no usable answer of %s in %s (%s): %s", self.round, client, step, reason.value, why)

    def _check_quorum(self) -> None:
        """Raise DroppedOut if fewer sources than the quorum are left in this round."""
        missed = {a["client"] for a in self.absences if a["round"] == self.round} & set(self.sources)
        left = len(set(self.participants) - missed)
        if left < self.quorum:
            self.notes["below_quorum"] = 1.0
            why = f"{left} of {len(self.participants)} sources are left, the quorum is {self.quorum}"
            raise DroppedOut("sources", why, Reason.QUORUM)

    def log(self, values: Mapping[str, float | None]) -> None:
        """Log values of this round: name -> value, written to metrics.jsonl."""
        self.notes |= {name: value for name, value in values.items() if name not in self.unlogged}

    def warn(self, text: str) -> None:
        """Show a warning about this round in the log."""
        log.warning("round %d: %s", self.round, text)

    def log_cosines(self, sources: list[str], dot: Tensor, ss: Tensor, tt: Tensor) -> None:
        """Log the cosine similarity of each source's update with the target's, from inner products (N, L) and (L,)."""
        layers = [s.name for s in self.layout.parameters if s.stop <= self.layout.main]
        names = layers if dot.shape[1] > 1 else ["model"]
        for source, row in zip(sources, cosines(dot, ss, tt).tolist(), strict=True):
            self.notes[f"cos/{source}"] = sum(row) / len(row)
            if len(self.sources) <= MANY:
                self.layer_notes += [
                    {"round": self.round, "source": source, "layer": name, "cos": round(c, 6)}
                    for name, c in zip(names, row, strict=True)
                ]

    def summary(self) -> dict[str, float | None]:
        """The logged values; with many sources, those of single sources as minimum, mean and maximum."""
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
            out[f"{kind}/lowest"] = min(values, default=None)
            out[f"{kind}/mean"] = sum(values) / len(values) if values else None
            out[f"{kind}/highest"] = max(values, default=None)
        return out
