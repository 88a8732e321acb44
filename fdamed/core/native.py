"""Libraries of our own C files, where the installation could build them; without a compiler there are none."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def library(beside: str, name: str, runs: str | None = None) -> ctypes.CDLL | None:
    """The library built beside this file, unless its own function `runs` says that this processor is too old for it.

    With torch's own OpenMP: a second team of threads would wait for the first one's to stop spinning.
    """
    import torch

    built = sorted(Path(beside).parent.glob(f"{name}*.so"))
    threads = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    if not built or not threads:
        return None
    ctypes.CDLL(str(threads[0]), mode=ctypes.RTLD_GLOBAL)
    found = ctypes.CDLL(str(built[0]))
    return found if runs is None or getattr(found, runs)() else None


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
