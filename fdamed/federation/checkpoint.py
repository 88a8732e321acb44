"""The record of a run so far, and the checkpoints from which it resumes with the same bits.

A checkpoint costs what is new: the record grows in a log of its own, and only clients that were asked since the last
checkpoint write their state again. Two generations are kept: a damaged one is skipped for the one before. A checkpoint
names the size of the log, which file holds each client's state, and the checksums of both.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, free, megabytes, room_for, sweep
from fdamed.federation.client_state import write_state
from fdamed.federation.messages import decode, encode, sizes
from fdamed.federation.method import Method
from fdamed.federation.server import Server

MemoryPath = Callable[[str, int], Path]
"""(client, round) -> the client's own file for its state."""
log = logging.getLogger(__name__)


@dataclass
class Record:
    """Everything a run has recorded, line by line."""

    metrics: list[dict[str, Any]] = field(default_factory=list)
    layers: list[dict[str, Any]] = field(default_factory=list)
    absences: list[dict[str, Any]] = field(default_factory=list)
    timing: list[dict[str, Any]] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    validation: list[dict[str, Any]] = field(default_factory=list)
    """What a resumed run must know of earlier updates: digests and cosines."""


@dataclass(frozen=True)
class Memory:
    """Where a client's state is, and its checksum."""

    round: int
    sha256: str


@dataclass
class Log:
    """A record on disk that only grows; what stands behind the last mark is dropped."""

    path: Path
    size: int = 0
    crc32: int = 0
    lines: dict[str, int] = field(default_factory=dict)
    """Lines of each part of the record that are already there."""

    def append(self, record: Record) -> dict[str, int]:
        """Write what is new, and the mark of where the log ends now."""
        news = {name: part[self.lines.get(name, 0) :] for name, part in vars(record).items()}
        content = json.dumps(news).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with (
            room_for(self.path, len(content)),
            open(self.path, "r+b" if self.path.exists() else "w+b") as file,
        ):
            file.truncate(self.size)
            file.seek(self.size)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._move(self.size + len(content), zlib.crc32(content, self.crc32), record)
        return {"size": self.size, "crc32": self.crc32}

    def read(self, mark: dict[str, int]) -> Record | None:
        """The record up to a mark, from where it goes on; None: the log is damaged."""
        content = self.path.read_bytes()[: mark["size"]] if self.path.exists() else b""
        if len(content) < mark["size"] or zlib.crc32(content) != mark["crc32"]:
            return None
        record = Record()
        for line in content.splitlines():
            for name, news in json.loads(line).items():
                getattr(record, name).extend(news)
        self._move(mark["size"], mark["crc32"], record)
        return record

    def _move(self, size: int, crc32: int, record: Record) -> None:
        self.size, self.crc32 = size, crc32
        self.lines = {name: len(part) for name, part in vars(record).items()}


class Checkpoints:
    """Where the state of a run is kept, and what it must fit."""

    def __init__(self, folder: Path, memory: MemoryPath, fingerprint: dict[str, Any], every: int = 1) -> None:
        self.folder, self.memory, self.fingerprint, self.every = folder, memory, fingerprint, every
        self._log = Log(folder / "record.jsonl")
        self._memories: dict[str, Memory] = {}
        self.behind: set[str] = set()
        """Clients whose process ended after answers that are in no saved state of theirs."""
        self._last = 0
        self._whole = False
        """Whether the newest file is known to be sound: a damaged one must not take the place of the one before."""

    @property
    def _files(self) -> tuple[Path, Path]:
        return self.folder / "checkpoint.bin", self.folder / "checkpoint.previous.bin"

    def check_room(self, state: Any) -> None:
        """Refuse to begin where the files of this run will not fit; other jobs may still fill the disk later."""
        size = sum(sizes(state).values())
        there = [p.stat().st_size for p in self._files if p.exists()]
        memories = sum(self.memory(p, m.round).stat().st_size for p, m in self._memories.items())
        needed = 4 * size + memories - sum(there)  # two generations, the draft of a third, the final weights
        left = free(self.folder)
        if left < needed:
            raise FdamedError(
                f"this run needs about {megabytes(needed)} for its checkpoints, and {megabytes(left)} are free",
                str(self.folder),
                "Make room and start again; a checkpoint that is there is kept.",
            )

    def save(self, round: int, state: Any, server: Server, record: Record) -> None:
        asked = sorted(server.touched)
        for client in asked:
            file = self.memory(client, round)
            state_of = server.transport.state(client)
            if state_of:
                write_state(state_of, file)
                self._memories[client] = Memory(round, _sha256(file))
            elif state_of is None:  # the state before stands; what the client has answered since is lost with it
                known = self._memories[client].round if client in self._memories else 0
                if any(line["from"] == client and line["round"] > known for line in record.ledger):
                    self.behind.add(client)
            else:
                self._memories.pop(client, None)
        head = json.dumps(
            {
                "fingerprint": self.fingerprint,
                "round": round,
                "log": self._log.append(record),
                "memories": {client: asdict(memory) for client, memory in self._memories.items()},
                "behind": sorted(self.behind),
            }
        ).encode()
        content = struct.pack("<I", len(head)) + head + encode(state)
        newest, previous = self._files
        with atomic(newest, len(content)) as draft:
            with open(draft, "wb") as out:
                out.write(hashlib.sha256(content).digest())
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
            if self._whole and newest.exists():  # only now: a full disk has cost neither generation
                newest.replace(previous)
        server.touched.clear()
        self._drop(asked)
        self._last, self._whole = round, True

    def _drop(self, clients: Iterable[str]) -> None:
        """Remove states that neither this checkpoint nor the one before names."""
        for client in clients:
            files = sorted(p for p in self.memory(client, 0).parent.glob("*.safetensors") if p.stem.isdigit())
            before = [p for p in files if int(p.stem) <= self._last]
            for old in before[:-1]:
                old.unlink()

    def load(self, method: Method[Any], server: Server) -> tuple[int, Any, Record] | None:
        """The newest whole checkpoint, or None; one of another study is refused."""
        for folder in (self.folder, *(self.memory(client, 0).parent for client in (*server.sources, server.target))):
            sweep(folder)
        for path in self._files:
            if not path.exists():
                continue
            content = path.read_bytes()
            if len(content) < 36 or hashlib.sha256(content[32:]).digest() != content[:32]:
                _pass_over(path, "checksum")
                continue
            try:
                (n,) = struct.unpack("<I", content[32:36])
                head = json.loads(content[36 : 36 + n])
                self._fits(head["fingerprint"])
                memories, behind = self._own(head["memories"], server), set(map(str, head["behind"]))
                record = self._log.read(head["log"])
                if record is None or not all(_sha256(self.memory(p, m.round)) == m.sha256 for p, m in memories.items()):
                    _pass_over(path, "its record" if record is None else "a client's state")
                    continue
                state: Any = decode(method.state, memoryview(content)[36 + n :], server.layout.size)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                # The checksum holds, so nothing was cut short: this is another program's file, or a forgery.
                _pass_over(path, f"not a checkpoint: {type(error).__name__}")
                continue
            for client, memory in memories.items():
                server.transport.restore(client, self.memory(client, memory.round).read_bytes())
            self._memories, self._last, self.behind = memories, head["round"], behind
            self._whole = path == self._files[0]
            return head["round"], state, record
        self._log = Log(self._log.path)  # it may have been read up to a checkpoint that was passed over
        return None

    def _own(self, memories: dict[str, dict[str, Any]], server: Server) -> dict[str, Memory]:
        """The states that a checkpoint names, if they are of clients and rounds of this run: they become a path."""
        found = {client: Memory(**words) for client, words in sorted(memories.items())}
        if not set(found) <= {*server.sources, server.target} or not all(type(m.round) is int for m in found.values()):
            raise ValueError("a state of no client of this run")
        return found

    def kept(self, client: str) -> Path | None:
        """The last saved state of a client; None: there is none."""
        return self.memory(client, self._memories[client].round) if client in self._memories else None

    def clear(self, clients: Iterable[str]) -> None:
        """Remove the checkpoints of a finished run."""
        memories = (p for client in clients for p in self.memory(client, 0).parent.glob("*.safetensors"))
        for path in (*self._files, self._log.path, *memories):
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


def _sha256(path: Path) -> str:
    """The checksum of a file; of one that is not there, nothing."""
    if not path.exists():
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pass_over(path: Path, what: str) -> None:
    log.warning("%s is damaged (%s); trying the one before", path.name, what)
