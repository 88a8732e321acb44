"""The record of a run so far, and the checkpoints from which it resumes with the same bits.

A checkpoint writes only what is new: the record grows in a log file of its own, and only clients that were asked since
the last checkpoint write their state again. Two generations are kept, and a damaged one is skipped for the one before.
A checkpoint has the size of the log, the round of the file with each client's state, and checksums of both.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, free, megabytes, room_for, sweep
from fdamed.federation.messages import decode, encode, pack, sizes, unpack
from fdamed.federation.method import Method
from fdamed.federation.questions import Reply
from fdamed.federation.server import Server

StatePath = Callable[[str, int], Path]
"""(client, round) -> the client's own file for its state, as it is named in questions to the client."""
log = logging.getLogger(__name__)
Lines = list[dict[str, Any]]
MOST_ROUNDS = 10**9


@dataclass
class Record:
    """Everything a run has recorded, line by line."""

    metrics: Lines = field(default_factory=list)
    layers: Lines = field(default_factory=list)
    absences: Lines = field(default_factory=list)
    timing: Lines = field(default_factory=list)
    ledger: Lines = field(default_factory=list)
    validation: Lines = field(default_factory=list)
    """What a resumed run must know of earlier updates: digests and cosines."""


@dataclass(frozen=True)
class Saved:
    """The round of the file with a client's state, and its checksum."""

    round: int
    sha256: str


@dataclass
class Log:
    """A record on disk that only grows; what follows the last mark is dropped."""

    path: Path
    size: int = 0
    crc32: int = 0
    lines: dict[str, int] = field(default_factory=dict)
    """Lines of each part of the record that are already there."""

    def append(self, record: Record) -> dict[str, int]:
        """Write what is new; the mark of where the log ends now."""
        news = {name: part[self.lines.get(name, 0) :] for name, part in vars(record).items()}
        content = json.dumps(news).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with room_for(self.path, len(content)), open(self.path, "r+b" if self.path.exists() else "w+b") as file:
            file.truncate(self.size)
            file.seek(self.size)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return self._move(self.size + len(content), zlib.crc32(content, self.crc32), record)

    def read(self, mark: dict[str, int]) -> Record:
        """The record up to a mark, from where it is continued."""
        content = self.path.read_bytes()[: mark["size"]] if self.path.exists() else b""
        if len(content) < mark["size"] or zlib.crc32(content) != mark["crc32"]:
            raise ValueError("its record")
        record = Record()
        for line in content.splitlines():
            for name, news in json.loads(line).items():
                getattr(record, name).extend(news)
        self._move(mark["size"], mark["crc32"], record)
        return record

    def _move(self, size: int, crc32: int, record: Record) -> dict[str, int]:
        self.size, self.crc32 = size, crc32
        self.lines = {name: len(part) for name, part in vars(record).items()}
        return {"size": size, "crc32": crc32}


class Checkpoints:
    """Where the state of a run is kept, and the conditions (`fingerprint`) that it was made under."""

    def __init__(
        self, folder: Path, memory: StatePath, fingerprint: dict[str, Any], every: int = 1, record: Path | None = None
    ) -> None:
        """`record`: the file of the record, whose scores may have to stay with a client; default: in `folder`."""
        self.folder, self.memory, self.fingerprint, self.every = folder, memory, fingerprint, every
        self._files = folder / "checkpoint.bin", folder / "checkpoint.previous.bin"
        self._log = Log(record or folder / "record.jsonl")
        self._saved: dict[str, Saved] = {}
        self.behind: set[str] = set()
        """Clients whose process ended after answers that are in no saved state of theirs."""
        self._last = 0
        self._whole = False
        """Whether the newest file is known to be sound: a damaged one must not replace the one before."""

    def check_room(self, state: Any) -> None:
        """Raise if the disk has no room for the files of this run; other jobs may still fill it later."""
        there = sum(path.stat().st_size for path in self._files if path.exists())
        needed = 4 * sum(sizes(state).values()) - there  # two generations, a draft, the final weights
        left = free(self.folder)
        if left < needed:
            raise FdamedError(
                f"this run needs about {megabytes(needed)} for its checkpoints, and {megabytes(left)} are free",
                str(self.folder),
                "Make room and start again; a checkpoint that is there is kept.",
            )

    def save(self, round: int, state: Any, server: Server, record: Record) -> None:
        """Write a checkpoint, and the states of the clients that were asked since the last one."""
        asked = sorted(server.touched)
        saved = server.transport.inquire("save", {c: {"file": str(self.memory(c, round))} for c in asked})
        for client in asked:
            self._book(client, round, saved.get(client), record)
        head = {
            "fingerprint": self.fingerprint,
            "round": round,
            "log": self._log.append(record),
            "memories": {client: asdict(saved) for client, saved in self._saved.items()},
            "behind": sorted(self.behind),
        }
        content = pack(head, encode(state))
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
        # States that neither this checkpoint nor the one before has.
        heads = {c: {"file": str(self.memory(c, 0)), "last": self._last, "keep": True} for c in asked if c in saved}
        server.transport.inquire("prune", heads)
        self._last, self._whole = round, True

    def _book(self, client: str, round: int, reply: Reply | None, record: Record) -> None:
        if reply and reply.get("sha256"):
            self._saved[client] = Saved(round, str(reply["sha256"]))
        elif reply:
            self._saved.pop(client, None)
        else:  # the last saved state remains; what the client has answered since is not in it
            known = self._saved[client].round if client in self._saved else 0
            if any(line["from"] == client and line["round"] > known for line in record.ledger):
                self.behind.add(client)

    def load(self, method: Method[Any], server: Server) -> tuple[int, Any, Record] | None:
        """Round, state and record of the newest sound checkpoint, or None; one of other conditions is refused."""
        sweep(self.folder)
        for path in filter(Path.exists, self._files):
            try:
                found = self._read(path, method, server)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                what = str(error) if isinstance(error, ValueError) else f"not a checkpoint: {type(error).__name__}"
                log.warning("%s is damaged (%s); trying the one before", path.name, what)
                continue
            self._restore(server)
            self._last, self._whole = found[0], path == self._files[0]
            return found
        self._log = Log(self._log.path)  # it may have been read up to a checkpoint that was skipped
        clients = (*server.sources, server.target)  # states of an earlier run would be taken for this one's
        server.transport.inquire("prune", {c: {"file": str(self.memory(c, 0)), "last": MOST_ROUNDS} for c in clients})
        return None

    def _restore(self, server: Server) -> None:
        """Give every client its saved state back; one that has none begins with an empty one."""
        clients = (*server.sources, server.target)
        files = {c: str(self.memory(c, self._saved[c].round)) if c in self._saved else "" for c in clients}
        taken = server.transport.inquire("load", {c: {"file": files[c]} for c in clients if files[c]})
        if gone := sorted(self._saved.keys() - taken):
            raise FdamedError(
                f"{', '.join(gone)} did not answer, and the run cannot resume without the saved state there",
                str(self.folder),
                "Start again when every hospital is there.",
            )

    def _read(self, path: Path, method: Method[Any], server: Server) -> tuple[int, Any, Record]:
        content = memoryview(path.read_bytes())
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            raise ValueError("checksum")
        head, body = unpack(content[32:])
        self._check_conditions(head["fingerprint"])
        saved = {client: Saved(**entry) for client, entry in sorted(head["memories"].items())}
        known = saved.keys() <= {*server.sources, server.target}  # names and rounds become paths
        if not known or any(type(s.round) is not int for s in saved.values()):
            raise ValueError("a state of no client of this run")
        record = self._log.read(head["log"])
        clients = (*server.sources, server.target)
        files = {c: str(self.memory(c, saved[c].round if c in saved else 0)) for c in clients}
        there = server.transport.inquire("check", {c: {"file": file} for c, file in files.items()})
        if any(c in there and there[c].get("sha256") != s.sha256 for c, s in saved.items()):
            raise ValueError("a client's state")
        state: Any = decode(method.state, body, server.layout.size)
        self._saved, self.behind = saved, set(map(str, head["behind"]))
        return head["round"], state, record

    def kept(self, client: str) -> Path | None:
        """The file with the last saved state of a client; None: there is none."""
        return self.memory(client, self._saved[client].round) if client in self._saved else None

    def clear(self) -> None:
        """Remove the checkpoints of a finished run; its clients remove their states."""
        for path in (*self._files, self._log.path):
            path.unlink(missing_ok=True)

    def _check_conditions(self, found: dict[str, Any]) -> None:
        changed = sorted(k for k in self.fingerprint if found.get(k) != self.fingerprint[k])
        if changed:
            listed = "; ".join(f"{k}: {found.get(k)} then, {self.fingerprint[k]} now" for k in changed)
            raise FdamedError(
                f"the checkpoint was made under other conditions ({listed})",
                str(self.folder),
                "Restore those conditions to resume, or delete the folder to start this run again.",
            )
