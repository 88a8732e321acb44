"""The state that a client keeps between questions, as bytes (safetensors) and as a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, room_for


def pack_state(memory: Mapping[str, Tensor], names: tuple[str, ...] | None = None) -> bytes:
    """The tensors as bytes, only `names` if given; no bytes for an empty state."""
    from safetensors.torch import save

    kept = {k: v.contiguous() for k, v in memory.items() if names is None or k in names}
    return save(kept) if kept else b""


def unpack_state(content: bytes, where: str) -> dict[str, Tensor]:
    """The tensors in these bytes; anything else is refused."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        found: dict[str, Tensor] = load(content) if content else {}
    except SafetensorError:
        fix = "Remove the run's `state` folder and start it again from its beginning."
        raise FdamedError("the saved state of a client is damaged, or not a file of tensors", where, fix) from None
    return found


def write_state(content: bytes, path: Path) -> None:
    """Write the bytes atomically."""
    with atomic(path, len(content)) as draft:
        draft.write_bytes(content)


def park_state(content: bytes, path: Path) -> None:
    """Write the bytes for this process alone: not synced, because they are of no use after it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with room_for(path, len(content)):
        path.write_bytes(content)


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors in a client's file."""
    return unpack_state(path.read_bytes(), str(path))
