"""What a client answers beside the steps of a method: questions about its state, its scores and its privacy cost.

They stay off the ledger, which counts what methods send. Answers are small JSON objects: a client's state and its own
model are written by the client to its own files, of which the server only learns checksums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fdamed.core.errors import FdamedError
from fdamed.core.files import sweep
from fdamed.federation.messages import WireError
from fdamed.federation.storage.client_state import pack_state, read_state, write_state
from fdamed.models.flat import Layout, without_heads

Reply = dict[str, Any]
Scores = Mapping[str, float | None]


@dataclass(frozen=True)
class Memory:
    """Access to a client's state, wherever it is."""

    read: Callable[[], dict[str, Tensor]]
    write: Callable[[dict[str, Tensor]], None]


@dataclass(frozen=True)
class Home:
    """What belongs to a client in one phase of a run, beside its data and its state."""

    layout: Layout
    file: Callable[[str], Path] = Path
    """The name of a file in a question -> the client's own file."""
    scores: Callable[[Tensor, Memory], Scores] | None = None
    """Scores of a model on data that no method sees; None: it has no such data."""
    cost: Callable[[Memory], Reply] | None = None
    """The privacy budget that its training has spent."""


def theta_bytes(theta: Tensor) -> bytes:
    """A vector as the body of a question."""
    return theta.detach().cpu().contiguous().numpy().tobytes()


def checksum(path: Path) -> str:
    """The checksum of a file; empty: there is none."""
    if not path.exists():
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def answer_question(home: Home, memory: Memory, question: str, head: Mapping[str, Any], body: bytes) -> Reply:
    """The answer to one question; raises WireError for one that does not exist or is malformed."""
    if question not in QUESTIONS:
        raise WireError("this client does not know such a question")
    return QUESTIONS[question](home, memory, head, body)


def _save(home: Home, memory: Memory, head: Mapping[str, Any], body: bytes) -> Reply:
    """Write the state (only `names`, if given) to the client's own file; an empty state is no file."""
    content = pack_state(memory.read(), _names(head))
    if not content:
        return {"sha256": ""}
    path = home.file(_text(head, "file"))
    write_state(content, path)
    return {"sha256": checksum(path)}


def _check(home: Home, memory: Memory, head: Mapping[str, Any], body: bytes) -> Reply:
    """The checksum of a saved state; what a killed process left half-written beside it is removed."""
    path = home.file(_text(head, "file"))
    sweep(path.parent)
    return {"sha256": checksum(path)}


def _load(home: Home, memory: Memory, head: Mapping[str, Any], body: bytes) -> Reply:
    """Take a saved state (only `names`, if given) for the client's own; no file: an empty one."""
    found, names = {}, _names(head)
    if name := _text(head, "file"):
        found = read_state(home.file(name))
    memory.write({k: v for k, v in found.items() if names is None or k in names})
    return {}


def _prune(home: Home, memory: Memory, head: Mapping[str, Any], body: bytes) -> Reply:
    """Remove the saved states of rounds up to `last`, but the newest of them if `keep`; without `last` all states."""
    last, folder = head.get("last"), home.file(_text(head, "file")).parent
    if last is not None and type(last) is not int:
        raise WireError("the last round is not a number")
    files = sorted(folder.glob("*.safetensors"))
    if last is not None:
        files = [p for p in files if p.stem.isdigit() and int(p.stem) <= last]
    for old in files[:-1] if head.get("keep") is True else files:
        old.unlink()
    return {}


def _keep(home: Home, memory: Memory, head: Mapping[str, Any], body: bytes) -> Reply:
    """Write `names` of the state, without auxiliary heads, as the client's own model."""
    kept = {k: v for k, v in memory.read().items() if k in (_names(head) or ())}
    write_state(pack_state(without_heads(kept, home.layout)) if kept else b"", home.file(_text(head, "file")))
    return {}


def _evaluate(home: Home, memory: Memory, head: Mapping[str, Any], body: bytes) -> Reply:
    """Scores of the model in `body`."""
    if home.scores is None or len(body) % 4:
        raise WireError("this client evaluates no such model")
    theta = torch.from_numpy(np.frombuffer(body, dtype=np.float32).copy())
    return {"scores": dict(home.scores(theta, memory))}


def _cost(home: Home, memory: Memory, head: Mapping[str, Any], body: bytes) -> Reply:
    """The privacy cost of the client's training so far."""
    return home.cost(memory) if home.cost else {}


QUESTIONS = {
    "save": _save,
    "check": _check,
    "load": _load,
    "prune": _prune,
    "keep": _keep,
    "evaluate": _evaluate,
    "cost": _cost,
}


def _text(head: Mapping[str, Any], key: str) -> str:
    if not isinstance(found := head.get(key), str):
        raise WireError(f"the question has no {key}")
    return found


def _names(head: Mapping[str, Any]) -> tuple[str, ...] | None:
    names = head.get("names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise WireError("the names of a question are not a list")
    return None if names is None else tuple(names)


def scores_in(reply: Reply) -> dict[str, float | None]:
    """The scores of an answer; raises WireError for anything but numbers."""
    scores = reply.get("scores")
    if not isinstance(scores, dict) or not all(v is None or type(v) in (float, int) for v in scores.values()):
        raise WireError("the scores are not numbers")
    return {str(k): v for k, v in scores.items()}


def unreadable(client: str, error: WireError) -> FdamedError:
    """The error for bytes that a client cannot read."""
    return FdamedError(str(error), f"hospital {client}", "Use the same version of fdamed everywhere.")
