"""How the server asks: in this process (the default, which costs next to nothing) or with one process a hospital."""

from __future__ import annotations

import math
import multiprocessing
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fdamed.errors import FdamedError
from fdamed.federation.ledger import SERVER, Ledger
from fdamed.federation.site import Site, Step, answer, open_door, pack, refusal, unpack
from fdamed.federation.wire import WireError, decode, encode, kinds, sizes
from fdamed.models.flat import Layout
from fdamed.seeds import stream


class DroppedOut(Exception):
    """A hospital did not answer, or its answer could not be used."""

    def __init__(self, party: str, why: str) -> None:
        super().__init__(f"{party}: {why}")
        self.party = party
        self.why = why


class Network(ABC):
    """The server's side: it may only ask, and every answer is counted, checked and named."""

    def __init__(self, parties: Iterable[str], target: str, layout: Layout, method: str) -> None:
        self.target = target
        self.sources = tuple(sorted(p for p in parties if p != target))
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
        self._asked: dict[tuple[str, str], int] = {}
        self._share, self._seed = 1.0, 0

    def invite(self, share: float, seed: int) -> None:
        """Let only this share of the sources, drawn anew each round and at least one, take part."""
        self._share, self._seed = share, seed

    def begin(self, round: int, rounds: int) -> None:
        """Start round 1, 2, ... of `rounds`; its number is part of every random stream."""
        self.round, self.rounds = round, rounds
        few = max(1, math.floor(self._share * len(self.sources) + 0.5))
        drawn = stream(self._seed, "participants", round).numpy.permutation(len(self.sources))[:few]
        self.participants = tuple(self.sources[i] for i in sorted(drawn))
        self._asked.clear()
        self.notes.clear()
        self.layer_notes.clear()

    def ask(self, party: str, step: Step, msg: Any) -> Any:
        """One question to one hospital; raises DroppedOut when no usable answer comes."""
        if party != self.target and party not in self.participants:
            raise DroppedOut(party, "takes no part in this round")
        nth = self._asked.get((party, step.name), 0)
        self._asked[(party, step.name)] = nth + 1
        self.check_release(party, step)
        fault = self._unreachable(party)
        if fault is None:
            self.ledger.note(self.round, SERVER, party, step.name, sizes(msg))
            reply = self._deliver(party, step, nth, msg)
            self.ledger.note(self.round, party, SERVER, step.name, sizes(reply))
            fault = self._fault(party, step, reply)
            if fault is None:
                return reply
        self._miss(party, step, fault)
        raise DroppedOut(party, fault)

    def ask_all(self, parties: Iterable[str], step: Step, msg: Any) -> dict[str, Any]:
        """The same question to several hospitals; those that drop out are left out, and named in `absences`."""
        replies = {}
        for party in sorted(parties):
            try:
                replies[party] = self.ask(party, step, msg)
            except DroppedOut:
                continue
        return replies

    def note_cosines(self, sources: list[str], cos: Tensor) -> None:
        """Keep cos (N, L) by layer, and each source's mean over the layers, for metrics and heat maps."""
        names = [s.name for s in self.layout.parameters] if cos.shape[1] > 1 else ["model"]
        for source, row in zip(sources, cos.tolist(), strict=True):
            self.notes[f"cos/{source}"] = sum(row) / len(row)
            self.layer_notes += [
                {"round": self.round, "source": source, "layer": name, "cos": round(c, 6)}
                for name, c in zip(names, row, strict=True)
            ]

    def reject(self, party: str, step: Step, why: str) -> None:
        """Leave an answer that came out of this round, by name, in the log and in the run's record."""
        self._miss(party, step, f"update rejected: {why}")

    def _miss(self, party: str, step: Step, why: str) -> None:
        self.absences.append({"round": self.round, "party": party, "step": step.name, "why": why})
        print(f"round {self.round}: {party} is left out of {step.name}: {why}", file=sys.stderr, flush=True)

    def _unreachable(self, party: str) -> str | None:
        """Why the hospital cannot even be asked; None: it can."""
        return None

    def _fault(self, party: str, step: Step, reply: Any) -> str | None:
        """Why an answer that left the hospital is of no use; None: it is."""
        return unusable(reply)

    @abstractmethod
    def check_release(self, party: str, step: Step) -> None:
        """Raise when the hospital's policy does not let out what the step answers with."""

    @abstractmethod
    def _deliver(self, party: str, step: Step, nth: int, msg: Any) -> Any: ...

    @abstractmethod
    def save_memory(self, party: str, path: Path) -> None: ...

    @abstractmethod
    def load_memory(self, party: str, path: Path) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Let the hospitals go."""


def unusable(reply: Any) -> str | None:
    """Why an answer must not reach an aggregation rule; None: it may."""
    for name, kind in kinds(type(reply)).items():
        value = getattr(reply, name)
        if isinstance(value, Tensor):
            # A finite sum proves finite entries; only a suspicious one is looked at closely.
            if not torch.isfinite(value.sum()) and not torch.isfinite(value).all():
                return f"update rejected: {name} has entries that are not finite"
        elif kind == "scalar" and not (value == value and abs(value) != float("inf")):
            return f"update rejected: {name} is not finite"
        elif kind == "count" and not 0 <= value < 10**9:
            return f"update rejected: {name} is no possible number of samples"
    return None


class InProcess(Network):
    """All hospitals in this process: messages are passed as they are, bytes are counted from shapes."""

    def __init__(self, sites: Mapping[str, Site], target: str, method: str) -> None:
        layout = next(iter(sites.values())).model.layout
        super().__init__(sites, target, layout, method)
        self._sites = dict(sites)

    def check_release(self, party: str, step: Step) -> None:
        refused = refusal(step, self._sites[party].release, party, self.method)
        if refused:
            raise refused

    def _deliver(self, party: str, step: Step, nth: int, msg: Any) -> Any:
        return answer(self._sites[party], step, self.round, nth, msg)

    def save_memory(self, party: str, path: Path) -> None:
        write_memory(self._sites[party].memory, path)

    def load_memory(self, party: str, path: Path) -> None:
        self._sites[party].memory = read_memory(path)

    def close(self) -> None:
        self._sites.clear()


class Processes(Network):
    """One process a hospital; nothing but bytes crosses."""

    def __init__(
        self,
        builders: Mapping[str, Callable[[], Site]],
        target: str,
        layout: Layout,
        method: str,
        release: Mapping[str, frozenset[str]],
        threads: int = 1,
    ) -> None:
        super().__init__(builders, target, layout, method)
        self._release = dict(release)
        context = multiprocessing.get_context("spawn")
        self._gone: set[str] = set()
        self._lines: dict[str, Connection] = {}
        self._workers = {}
        for party, build in builders.items():
            here, there = context.Pipe()
            worker = context.Process(target=_hospital, args=(there, build, method, threads), daemon=True)
            worker.start()
            there.close()
            self._lines[party], self._workers[party] = here, worker

    def check_release(self, party: str, step: Step) -> None:
        refused = refusal(step, self._release[party], party, self.method)
        if refused:
            raise refused

    def _deliver(self, party: str, step: Step, nth: int, msg: Any) -> Any:
        head = {"step": step.name, "round": self.round, "nth": nth}
        try:
            return decode(step.answer, self._talk(party, head, encode(msg)), self.layout.size)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._gone.add(party)
            why = "its process ended"
        except WireError as error:
            why = f"update rejected: {error}"
        self._miss(party, step, why)
        raise DroppedOut(party, why)

    def _talk(self, party: str, head: dict[str, Any], body: bytes) -> memoryview:
        line = self._lines[party]
        line.send_bytes(pack(head, body))
        reply, content = unpack(line.recv_bytes())
        if not reply["ok"]:
            raise FdamedError(*reply["error"])
        return content

    def save_memory(self, party: str, path: Path) -> None:
        if party in self._gone:
            return
        try:
            self._talk(party, {"save": str(path)}, b"")
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._gone.add(party)

    def load_memory(self, party: str, path: Path) -> None:
        self._talk(party, {"load": str(path)}, b"")

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        for worker in self._workers.values():
            worker.join(timeout=10)
            if worker.is_alive():
                worker.kill()


def _hospital(line: Connection, build: Callable[[], Site], method: str, threads: int) -> None:
    """The life of a hospital's process: answer until the line is closed. `build` knows which steps there are."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # SLURM tells every process to end; the server decides, and hangs up
    torch.set_num_threads(threads)
    try:
        site = build()
    except FdamedError as error:
        line.recv_bytes()
        line.send_bytes(pack({"ok": False, "error": [error.what, error.where, error.fix]}, b""))
        return
    door = open_door(site, method)
    while True:
        try:
            request = line.recv_bytes()
        except (EOFError, OSError):
            return
        head, _ = unpack(request)
        if "save" in head:
            write_memory(site.memory, Path(head["save"]))
            line.send_bytes(pack({"ok": True}, b""))
        elif "load" in head:
            site.memory = read_memory(Path(head["load"]))
            line.send_bytes(pack({"ok": True}, b""))
        else:
            line.send_bytes(door(request))


def write_memory(memory: Mapping[str, Tensor], path: Path) -> None:
    """A hospital's memory as a file of its own."""
    from safetensors.torch import save_file

    from fdamed.files import atomic

    with atomic(path) as draft:
        save_file({k: v.contiguous() for k, v in memory.items()}, draft)


def read_memory(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    content: dict[str, Tensor] = load_file(path)
    return content
