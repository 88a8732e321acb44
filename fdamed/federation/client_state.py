"""What a hospital remembers, as a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fdamed.core.errors import FdamedError


def write_memory(memory: Mapping[str, Tensor], path: Path) -> None:
    """Whole or not at all."""
    from safetensors.torch import save_file

    from fdamed.core.files import atomic

    with atomic(path, sum(v.nbytes for v in memory.values())) as draft:
        save_file({k: v.contiguous() for k, v in memory.items()}, draft)


def put_aside(memory: Mapping[str, Tensor], path: Path) -> None:
    """For this process alone, which reads it again or dies with it: not synced."""
    from safetensors.torch import save_file

    from fdamed.core.files import room_for

    path.parent.mkdir(parents=True, exist_ok=True)
    with room_for(path, sum(v.nbytes for v in memory.values())):
        save_file({k: v.contiguous() for k, v in memory.items()}, path)


def read_memory(path: Path) -> dict[str, Tensor]:
    """The tensors of a hospital's own file; anything else than tensors is refused."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        content: dict[str, Tensor] = load_file(path)
    except SafetensorError:
        fix = "Remove the run's `state` folder and start it again from its beginning."
        raise FdamedError("what a hospital remembers is damaged, or not a file of tensors", str(path), fix) from None
    return content
