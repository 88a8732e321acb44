"""Rounds, checkpoints, judgement: the run of one method, which can be killed anywhere and ends with the same bits."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from fdamed.errors import FdamedError
from fdamed.federation.ledger import Ledger
from fdamed.federation.method import Method
from fdamed.federation.network import DroppedOut, Network
from fdamed.federation.stopping import Stopped, stop
from fdamed.federation.wire import decode, encode
from fdamed.files import atomic
from fdamed.progress import track

Judge = Callable[[Tensor], Mapping[str, float | None]]
"""Scores of a model on data that no method sees."""
MemoryPath = Callable[[str, int], Path]
"""(party, round) -> the hospital's own file for its memory."""


TOLD = ("train/loss", "val/auc", "test/auc", "test/acc")
"""What a line on the terminal shows of a round."""


@dataclass
class Record:
    """Everything a run has to tell, line by line."""

    metrics: list[dict[str, Any]] = field(default_factory=list)
    layers: list[dict[str, Any]] = field(default_factory=list)
    absences: list[dict[str, Any]] = field(default_factory=list)
    timing: list[dict[str, Any]] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Checkpoints:
    """Where the state of a run is kept, and what it must fit.

    Two generations are kept: a checkpoint that was cut short or changed is passed over for the one before.
    """

    folder: Path
    memory: MemoryPath
    fingerprint: dict[str, Any]
    every: int = 1

    @property
    def _files(self) -> tuple[Path, Path]:
        return self.folder / "checkpoint.bin", self.folder / "checkpoint.previous.bin"

    def save(self, round: int, state: Any, net: Network, record: Record) -> None:
        for party in (*net.sources, net.target):
            net.save_memory(party, self.memory(party, round))
        body = encode(state)
        head = json.dumps({"fingerprint": self.fingerprint, "round": round, "record": vars(record)}).encode()
        content = struct.pack("<I", len(head)) + head + body
        newest, previous = self._files
        if newest.exists():
            newest.replace(previous)
        with atomic(newest) as draft:
            draft.write_bytes(hashlib.sha256(content).digest() + content)
        for party in (*net.sources, net.target):
            for old in self.memory(party, round).parent.glob("*.safetensors"):
                if old.stem.isdigit() and int(old.stem) < round - self.every:
                    old.unlink()

    def load(self, method: Method[Any], net: Network) -> tuple[int, Any, Record] | None:
        """The newest whole checkpoint, or None; one of another study is refused."""
        for path in self._files:
            if not path.exists():
                continue
            content = path.read_bytes()
            if len(content) < 36 or hashlib.sha256(content[32:]).digest() != content[:32]:
                print(f"{path.name} is damaged (checksum) and passed over", file=sys.stderr, flush=True)
                continue
            (n,) = struct.unpack("<I", content[32:36])
            head = json.loads(content[36 : 36 + n])
            self._fits(head["fingerprint"])
            for party in (*net.sources, net.target):
                if self.memory(party, head["round"]).exists():  # one that was gone by then remembers nothing
                    net.load_memory(party, self.memory(party, head["round"]))
            state: Any = decode(method.state, memoryview(content)[36 + n :], net.layout.size)
            return head["round"], state, Record(**head["record"])
        return None

    def clear(self, parties: Iterable[str]) -> None:
        """Forget the state of a run that is finished: nothing is left to go on with."""
        for path in (
            *self._files,
            *(p for party in parties for p in self.memory(party, 0).parent.glob("*.safetensors")),
        ):
            path.unlink(missing_ok=True)

    def _fits(self, found: dict[str, Any]) -> None:
        changed = sorted(k for k in self.fingerprint if found.get(k) != self.fingerprint[k])
        if changed:
            told = "; ".join(f"{k}: {found.get(k)} then, {self.fingerprint[k]} now" for k in changed)
            raise FdamedError(
                f"the checkpoint was made under other conditions ({told})",
                str(self.folder),
                "Restore those conditions to go on, or delete the folder to start this run again.",
            )


def run(
    method: Method[Any],
    net: Network,
    theta: Tensor,
    rounds: int,
    judge: Judge,
    checkpoints: Checkpoints | None = None,
    judge_every: int = 1,
) -> tuple[Tensor, Record]:
    """Run `method` from `theta` to the end, from the last checkpoint where there is one."""
    rounds = method.length(rounds)
    for step in method.asks():
        for party in (*net.sources, net.target):
            net.check_release(party, step)
    done, state, record = 0, method.start(theta), Record()
    found = checkpoints.load(method, net) if checkpoints else None
    if found:
        done, state, record = found
        net.ledger = Ledger(record.ledger)
        print(f"going on after round {done} of {rounds}", file=sys.stderr, flush=True)
    watched, on_disk = sys.stderr.isatty(), done
    ahead = range(done + 1, rounds + 1)
    for round in track(ahead, f"{net.method} at {net.target}") if watched else ahead:
        begin, used, started = (
            time.perf_counter(),
            time.process_time(),
            datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        net.begin(round, rounds)
        stop.at_once(on_disk == round - 1)
        try:
            state = method.round(state, net)
        except DroppedOut as absent:
            net.notes["lost"] = 1.0
            print(f"round {round} is lost: {absent}", file=sys.stderr, flush=True)
        seconds, cpu = time.perf_counter() - begin, time.process_time() - used
        judged = judge(method.final(state)) if round % judge_every == 0 or round == rounds else {}
        stop.at_once(False)
        record.metrics.append({"round": round, **net.notes, **judged})
        record.layers += net.layer_notes
        record.absences += net.absences
        net.absences.clear()
        record.timing.append({"round": round, "started": started, "seconds": round_to(seconds), "cpu": round_to(cpu)})
        record.ledger = net.ledger.lines()
        if checkpoints and (round % checkpoints.every == 0 or round == rounds or stop.asked):
            checkpoints.save(round, state, net, record)
            on_disk = round
        if not watched:
            _tell(round, rounds, record)
        if stop.asked and round < rounds:
            raise Stopped
    if all(m.get("lost") for m in record.metrics):
        raise FdamedError(
            "every round was lost: the target, or a quorum of sources, never gave a usable answer",
            f"{net.method}, target {net.target}",
            "Look into the run's log for the reason; nothing was learned, so nothing is scored.",
        )
    return method.final(state), record


def round_to(seconds: float) -> float:
    return float(f"{seconds:.4f}")


def _tell(round: int, rounds: int, record: Record) -> None:
    spent = [t["seconds"] for t in record.timing]
    line = record.metrics[-1]
    shown = "  ".join(f"{k} {line[k]:.3f}" for k in TOLD if line.get(k) is not None)
    left = sum(spent) / len(spent) * (rounds - round)
    print(f"round {round}/{rounds}  {shown}  {spent[-1]:.1f} s  about {left:.0f} s left", file=sys.stderr, flush=True)
