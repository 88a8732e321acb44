"""A pretended CUDA device: CPU memory that reports `cuda:0`, refuses to be mixed with other tensors, and counts waits.

It is registered through torch's Python backend for PrivateUse1, once and for the whole process (functorch aborts from
then on): only tests marked `gpu` import this module, and they run in a process of their own (`make test-gpu`). Kernels,
rounding and streams of a real GPU are not imitated.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("pretended")
aten = torch.ops.aten
CUDA = torch.device("cuda", 0)
PACKAGE = f"{Path(__file__).resolve().parents[2] / 'fdamed'}/"
LIKE = {
    aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default, aten.full_like.default,
    aten.new_zeros.default, aten.new_empty.default, aten.new_full.default, aten.new_ones.default,
    aten.new_empty_strided.default, aten.randn_like.default, aten.rand_like.default,
}  # fmt: skip
"""They make a tensor beside another one, on its device unless another is named."""
DYNAMIC = {"nonzero", "masked_select", "_unique2", "unique_dim", "bincount", "repeat_interleave"}
"""The host must know the size of their result."""
READS = {"equal", "is_nonzero", "allclose", "_local_scalar_dense"}
"""They return a number to the host."""
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
SCALARS = ("fill_", "masked_fill", "masked_fill_", "where", "_fused_adam_", "index_fill_", "_foreach_mul_")
"""Beside pointwise operations, they take numbers that are tensors of the CPU."""


class DevicesMixed(RuntimeError):
    """What a real GPU refuses, too."""


class Counts:
    """What waited for the host, or moved: (kind, file:line of fdamed) -> times."""

    def __init__(self) -> None:
        self.waits: Counter[tuple[str, str]] = Counter()
        """Synchronizations, and copies that block."""
        self.queued: Counter[tuple[str, str]] = Counter()
        """Copies that do not."""
        self.bytes: Counter[str] = Counter()

    def note(self, kind: str, waits: bool = True, size: int = 0) -> None:
        (self.waits if waits else self.queued)[kind, _place()] += 1
        self.bytes[kind] += size

    def clear(self) -> None:
        for counter in (self.waits, self.queued, self.bytes):
            counter.clear()


COUNTS = Counts()


def _place() -> str:
    """File and line of the package's frame that asked for it."""
    frame = sys._getframe(2)
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno}" if frame else "outside"


class OnDevice(torch.Tensor):
    """A tensor of the pretended device; `memory` is the one that holds its numbers."""

    memory: torch.Tensor

    @staticmethod
    def __new__(cls, memory: torch.Tensor) -> OnDevice:
        return torch.Tensor._make_wrapper_subclass(
            cls, memory.size(), strides=memory.stride(), storage_offset=memory.storage_offset(), dtype=memory.dtype,
            layout=memory.layout, device=torch.device("pretended:0"),
        )  # fmt: skip

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory

    def __repr__(self) -> str:
        return f"OnDevice({self.memory!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        out = OnDevice(self.memory.clone()).requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            out._is_param = True  # type: ignore[attr-defined]  # what makes a tensor of another class a parameter
        memo[id(self)] = out
        return out

    def _get_data(self) -> torch.Tensor:
        return torch.Tensor.data.__get__(self)

    def _set_data(self, value: OnDevice) -> None:
        torch.Tensor.data.__set__(self, value)
        self.memory = value.memory

    data = property(_get_data, _set_data)
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Catches what makes or moves tensors of the device without one among its arguments."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        ours = any(isinstance(a, OnDevice) for a in tree_leaves((args, kwargs)))
        if ours or _names_device(kwargs.get("device")) or func._schema.name in ("aten::_pin_memory", "aten::is_pinned"):
            return _dispatch(func, args, kwargs)
        return func(*args, **kwargs)


def _names_device(device: Any) -> bool:
    return device is not None and torch.device(device).type in ("cuda", "pretended")


def _inner(tree: Any) -> Any:
    return tree_map_only(OnDevice, lambda t: t.memory, tree)


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the memory behind its tensors."""
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        with _Mode():
            out = func.decompose(*args, **kwargs)  # in inference mode nobody has taken it apart yet
        if out is not NotImplemented:
            return out
    name = func._schema.name.split("::")[1]
    leaves = tree_leaves((args, kwargs))
    ours = [a for a in leaves if isinstance(a, OnDevice)]
    others = [a for a in leaves if isinstance(a, torch.Tensor) and not isinstance(a, OnDevice)]
    if name == "is_pinned":
        return hasattr(args[0], "pinned")
    if name in ("_pin_memory", "pin_memory"):
        return pinned(args[0])
    if name == "copy_":
        return _copy(func, args, kwargs)
    there: bool | None = None
    if kwargs.get("device") is not None:
        there = _names_device(kwargs["device"])
        kwargs = kwargs | {"device": torch.device("cpu")}
    kwargs = {k: v for k, v in kwargs.items() if k != "pin_memory"}
    if name == "_to_copy":
        return _moved(func, args[0], kwargs, there)
    if func in LIKE:
        inner, options = _inner((args, kwargs))
        out = func(*inner, **options)
        return OnDevice(out) if (bool(ours) if there is None else there) else out
    if kwargs.get("generator") is not None and (ours or there):
        raise DevicesMixed(f"{func}: a generator of the CPU for a tensor of the GPU")
    if ours and others:
        _check_mixed(func, name, args, others)
    if ours and (name in READS or name in DYNAMIC or (name == "index" and _by_mask(args[1]))):
        COUNTS.note(f"synchronization: {name}")
    inner, options = _inner((args, kwargs))
    out = func(*inner, **options)
    if not ours and not there:
        return out
    known = {id(t.memory): t for t in ours}
    return tree_map_only(torch.Tensor, lambda t: known[id(t)] if id(t) in known else OnDevice(t), out)


def _by_mask(indices: Any) -> bool:
    return any(i.dtype in (torch.bool, torch.uint8) for i in tree_leaves(indices) if isinstance(i, torch.Tensor))


def _check_mixed(func: Any, name: str, args: Any, others: list[torch.Tensor]) -> None:
    """CUDA takes numbers of the CPU in pointwise operations, and indices of the CPU, which it copies."""
    if name == "set_":
        return
    if name in INDEXING and isinstance(args[0], OnDevice):
        if any(t.dim() for t in others):
            COUNTS.note("copy to the device: index")
        return
    numbers = all(t.dim() == 0 for t in others)
    in_place = name.endswith("_") and not isinstance(tree_leaves(args)[0], OnDevice)
    if numbers and not in_place and (torch.Tag.pointwise in func.tags or name in SCALARS):
        return
    shapes = ", ".join(
        f"{'GPU' if isinstance(t, OnDevice) else 'CPU'} {tuple(t.shape)}"
        for t in tree_leaves(args)
        if isinstance(t, torch.Tensor)
    )
    raise DevicesMixed(f"{func}: {shapes}")


def _copy(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    to, source = args[:2]
    if isinstance(to, OnDevice) != isinstance(source, OnDevice):
        waits = not (hasattr(source, "pinned") and ((len(args) > 2 and args[2]) or kwargs.get("non_blocking")))
        COUNTS.note(f"copy {'to' if isinstance(to, OnDevice) else 'from'} the device", waits, source.nbytes)
    inner, options = _inner((args, kwargs))
    func(*inner, **options)
    return to


def _moved(func: Any, source: torch.Tensor, kwargs: dict[str, Any], there: bool | None) -> torch.Tensor:
    here = isinstance(source, OnDevice)
    there = here if there is None else there
    queued = kwargs.pop("non_blocking", False) and hasattr(source, "pinned")
    if here != there:
        COUNTS.note(f"copy {'to' if there else 'from'} the device", not queued, source.nbytes)
    memory = source.memory if here else source
    out = func(memory, **kwargs)
    out = out.clone() if out.data_ptr() == memory.data_ptr() else out
    return OnDevice(out) if there else out


def pinned(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """A copy in memory that could be sent without waiting."""
    if isinstance(tensor, OnDevice):
        raise DevicesMixed("only memory of the CPU can be pinned")
    out = tensor.clone()
    out.pinned = True  # type: ignore[attr-defined]
    return out


class Stream:
    """A stream on which nothing ever waits."""

    def wait_stream(self, other: Stream) -> None:
        pass


def _nothing(*args: Any, **kwargs: Any) -> None:
    """In the place of what only a real device could do."""


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    """A guard for CUDA that does nothing, in torch's table of device guards: a build for CPUs has none."""
    cuda, meta = 1, 20
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    slots = (ctypes.c_void_p * 22).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    before, slots[cuda] = slots[cuda], slots[meta]
    try:
        yield
    finally:
        slots[cuda] = before


@contextlib.contextmanager
def pretended_gpu(free: int = 10**10) -> Iterator[Counts]:
    """Within, torch has a GPU with so many free bytes; gives the counts, from zero."""
    replaced = {
        "_lazy_init": _nothing,
        "is_available": lambda: True,
        "mem_get_info": lambda device=None: (free, free),
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_device_name": lambda device=None: "pretended GPU",
        "Stream": lambda device=None: Stream(),
        "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": lambda device=None: Stream(),
    }
    with contextlib.ExitStack() as stack:
        for name, value in replaced.items():
            stack.enter_context(mock.patch(f"torch.cuda.{name}", value))
        stack.enter_context(mock.patch.object(torch.Tensor, "pin_memory", pinned))
        stack.enter_context(mock.patch.object(torch.Tensor, "record_stream", _nothing))
        stack.enter_context(_guarded())
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(x, device="cuda") by way of the CPU
        stack.enter_context(_Mode())
        COUNTS.clear()
        yield COUNTS
