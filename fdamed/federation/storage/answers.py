"""Remembered answers: runs of one study ask a client the same questions, and an identical question has one answer.

FedAvg's rounds are also the warm-up of other runs, and of every value of a sweep. A client keeps what took long to
compute in files of its own folder: the answer, the state after it, and the time that it took. The name of a file is a
digest of everything that decides the bits. Entries may be deleted at any time; one that is damaged is computed again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, free, private
from fdamed.federation.messages import WireError, decode, encode, pack, sizes, unpack
from fdamed.federation.storage.client_state import pack_state, unpack_state

if TYPE_CHECKING:
    from fdamed.federation.client import Client, Step

WORTH = 0.02
"""Seconds of computing from which an answer is kept, and for each megabyte of it:"""
PER_MEGABYTE = 0.02
CHECKSUM = 4
"""Bytes at the beginning of an entry: its CRC-32, which finds damage five times faster than a digest."""
RESERVE = 10**9
"""Bytes of the disk that are left to checkpoints and other files."""
NOT_IN_KEY = (
    "data",
    "model",
    "heads",
    "memory",
    "noise",
    "account",
    "answers",
    "remembered",
    "sums_only",
    "certificates",
)
"""Fields of a client that are no text: data and state have digests, the settings of its networks are in `conditions`,
and under noise nothing is remembered."""
BEGAN = time.time()
log = logging.getLogger(__name__)


class Took(NamedTuple):
    """Wall-clock and CPU seconds in which an answer was computed."""

    seconds: float
    cpu: float


Found = tuple[Any, dict[str, Tensor], Took]
"""An answer, the state after it, and the time that it took."""


@dataclass(frozen=True)
class Answers:
    """The remembered answers of one client."""

    folder: Path
    """The client's own."""
    limit: int
    """Bytes of all entries."""
    conditions: str
    """What decides the bits of every answer: settings of the networks, versions, machine."""
    code: Mapping[str, str]
    """Step -> digest of its code; the answers to other steps are not remembered."""
    began: float = field(default_factory=lambda: BEGAN)
    """When this process began: entries that it has used or written since are not removed for others."""

    def at(self, folder: Path) -> Answers:
        """The same for the client of this folder."""
        return replace(self, folder=folder)

    def key(self, client: Client, step: Step, ask: Any) -> str | None:
        """The name of the entry for this question to the client as it is now; None: it is not remembered."""
        if step.name not in self.code or client.noise is not None:
            return None
        values = {f.name: getattr(client, f.name) for f in fields(client) if f.name not in NOT_IN_KEY}
        texts = [(k, sorted(v) if isinstance(v, frozenset) else v) for k, v in values.items()]
        parts = (
            (self.conditions, step.name, self.code[step.name], texts),
            [(f.name, digest_of(getattr(ask, f.name))) for f in fields(ask)],
            [(name, digest_of(client.memory[name])) for name in sorted(client.memory)],
            digest_data(client.data),
        )
        return hashlib.blake2b(repr(parts).encode(), digest_size=20).hexdigest()

    def find(self, key: str, step: Step, memory: Mapping[str, Tensor], size: int) -> Found | None:
        """The answer, the state after it and the time that it took; None: it must be computed."""
        path = self.folder / key
        try:
            content = memoryview(path.read_bytes())
        except OSError:
            return None
        try:
            if zlib.crc32(content[CHECKSUM:]).to_bytes(CHECKSUM) != content[:CHECKSUM]:
                raise WireError("checksum")
            head, body = unpack(content[CHECKSUM:])
            if head["key"] != key:
                raise WireError("the entry of another question")
            reply: Any = decode(step.answer, body[: head["answer"]], size)
            changed = unpack_state(bytes(body[head["answer"] :]), str(path))
            state = {name: changed[name] if name in changed else memory[name] for name in head["state"]}
            took = Took(*map(float, head["took"]))
        except (FdamedError, ValueError, KeyError, TypeError) as error:
            log.warning("a remembered answer is damaged (%s) and computed again: %s", error, path)
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        with suppress(OSError):  # another job may just have removed it
            os.utime(path)
        return reply, state, took

    def keep(self, key: str, reply: Any, before: Mapping[str, Tensor], after: Mapping[str, Tensor], took: Took) -> None:
        """Keep an answer that took longer to compute than to store, if there is room."""
        changed = {name: value for name, value in after.items() if value is not before.get(name)}
        size = sum(sizes(reply).values()) + sum(value.nbytes for value in changed.values())
        # The smaller time: a busy machine lengthens the one, several threads the other.
        if min(took) < WORTH + PER_MEGABYTE * size / 1e6:
            return
        try:
            if not self._make_room(size):
                return
            body = encode(reply)
            head = {"key": key, "took": took, "answer": len(body), "state": list(after)}
            parts = pack(head, b""), body, pack_state(changed)
            checksum = reduce(lambda before, part: zlib.crc32(part, before), parts, 0).to_bytes(CHECKSUM)
            draft = atomic(self.folder / key, size, sync=False)
            with (
                suppress(FileNotFoundError),
                draft as path,
                open(path, "wb") as out,
            ):  # another job may remove the draft
                out.writelines((checksum, *parts))
        except FdamedError:
            _log_once("answers are not remembered: the disk is full")
        except OSError as error:
            _log_once(f"answers are not remembered: {error.strerror}")

    def _make_room(self, size: int) -> bool:
        """Remove the entries that were not used for the longest time until there is room for `size` bytes."""
        if size > self.limit:
            return False
        if free(private(self.folder)) < size + RESERVE:
            _log_once(f"answers are not remembered: less than {RESERVE / 1e9:.0f} GB of the disk are free")
            return False
        found = []
        for entry in os.scandir(self.folder):
            with suppress(FileNotFoundError):  # another job has just removed it to make room
                found.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
        found.sort()
        excess = sum(n for _, n, _ in found) + size - self.limit
        for used, n, path in found:
            if excess <= 0:
                break
            if used >= self.began:
                return False
            Path(path).unlink(missing_ok=True)
            excess -= n
        return excess <= 0


@cache
def _log_once(text: str) -> None:
    log.warning(text)


_DIGESTS = WeakTensorKeyDictionary()
"""Tensor -> (version, digest): a model that goes to many clients is read once."""


def digest_of(value: Any) -> str:
    """A digest of a tensor or an array; a number itself."""
    if isinstance(value, np.ndarray):
        return _digest(value)
    if not isinstance(value, Tensor):
        return repr(value)
    if value.is_inference():  # has no version
        return _digest(value.cpu().numpy())
    known: tuple[int, str] | None = _DIGESTS.get(value)  # type: ignore[no-untyped-call]
    if known is None or known[0] != value._version:
        known = _DIGESTS[value] = (value._version, _digest(value.detach().cpu().numpy()))
    return known[1]


def _digest(array: np.ndarray[Any, Any]) -> str:
    content = hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=20)
    return f"{array.dtype}{array.shape}{content.hexdigest()}"


def digest_data(data: Any) -> str:
    """A digest of a client's images and all that it has beside them, made once."""
    known: dict[str, str] = vars(data)
    if "_digest" not in known:
        parts = []
        for name in (f.name for f in fields(data)):
            value = getattr(data, name)
            several = sorted(value.items()) if isinstance(value, dict) else [("", value)]
            parts += [(name, key, digest_of(v)) for key, v in several]
        known["_digest"] = hashlib.blake2b(repr((type(data).__name__, parts)).encode(), digest_size=20).hexdigest()
    return known["_digest"]
