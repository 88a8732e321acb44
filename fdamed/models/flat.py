"""A module as one contiguous float32 vector: the form in which models are sent, averaged and projected.

Parameters come first, in the module's order, then float buffers (BatchNorm's running mean and variance). Integer
buffers (`num_batches_tracked`) change nothing and are not included (decision 0003).
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

CHANNELS_LAST_FROM, IMAGE_CHANNELS = 8, 3
AUXILIARY = "auxiliary"
"""The part of a network that holds shared auxiliary heads; it is the last one."""


@dataclass(frozen=True)
class Segment:
    """One parameter or buffer inside the vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    kind: Literal["parameter", "buffer"]


@dataclass(frozen=True)
class Layout:
    """The segments of a vector, in order and without gaps."""

    segments: tuple[Segment, ...]

    @cached_property
    def size(self) -> int:
        return self.segments[-1].stop if self.segments else 0

    @cached_property
    def trainable(self) -> int:
        """Number of parameters: they are in [0, trainable), buffers follow."""
        return max((s.stop for s in self.parameters), default=0)

    @cached_property
    def parameters(self) -> tuple[Segment, ...]:
        return tuple(s for s in self.segments if s.kind == "parameter")

    @cached_property
    def stretches(self) -> tuple[tuple[int, int], ...]:
        """Start and stop of each parameter."""
        return tuple((s.start, s.stop) for s in self.parameters)

    @cached_property
    def heads(self) -> tuple[slice, ...]:
        """Where each shared auxiliary head stands: behind all other parameters."""
        found: dict[str, list[Segment]] = {}
        for s in self.parameters:
            if s.name.startswith(f"{AUXILIARY}."):
                found.setdefault(s.name.split(".")[1], []).append(s)
        return tuple(slice(parts[0].start, parts[-1].stop) for parts in found.values())

    @cached_property
    def main(self) -> int:
        """Number of parameters without those of shared auxiliary heads: they are in [0, main)."""
        return self.heads[0].start if self.heads else self.trainable

    @cached_property
    def variances(self) -> Tensor:
        """Indices of BatchNorm's running variances, which are positive in every valid model."""
        places = [range(s.start, s.stop) for s in self.segments if s.name.endswith("running_var")]
        return torch.tensor([i for place in places for i in place], dtype=torch.int64)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments)


def layout_of(module: nn.Module) -> Layout:
    """The layout of a module's parameters and float buffers."""
    parameters = dict(module.named_parameters())
    buffers = {n: b for n, b in module.named_buffers() if b.is_floating_point()}
    segments: list[Segment] = []
    for name, tensor in (parameters | buffers).items():
        start = segments[-1].stop if segments else 0
        kind: Literal["parameter", "buffer"] = "parameter" if name in parameters else "buffer"
        segments.append(Segment(name, tuple(tensor.shape), start, start + tensor.numel(), kind))
    return Layout(tuple(segments))


def view_of(vector: Tensor, segment: Segment) -> Tensor:
    """The segment with its own shape, as a view.

    Convolution kernels are stored as (out, height, width, in), PyTorch's channels_last, which is fastest here. Small
    ones (fewer than eight outputs, or fewer than eight inputs that are not an image) are stored as they are (0005).
    """
    piece = vector[segment.start : segment.stop]
    if len(segment.shape) == 4:
        out, into, height, width = segment.shape
        if out >= CHANNELS_LAST_FROM and not IMAGE_CHANNELS < into < CHANNELS_LAST_FROM:
            return piece.view(out, height, width, into).permute(0, 3, 1, 2)
    return piece.view(segment.shape)


def named_tensors(vector: Tensor, layout: Layout) -> dict[str, Tensor]:
    """Contiguous copies by name, for files and other programs."""
    return {s.name: view_of(vector, s).contiguous().clone() for s in layout}


def vector_from(tensors: Mapping[str, Tensor], layout: Layout) -> Tensor:
    """The vector of tensors by name; a missing name or a wrong shape is an error."""
    vector = torch.empty(layout.size)
    for s in layout:
        tensor = tensors[s.name]
        if tuple(tensor.shape) != s.shape:
            raise ValueError(f"{s.name} has shape {tuple(tensor.shape)}, not {s.shape}")
        view_of(vector, s).copy_(tensor)
    return vector


def checksum(vector: Tensor) -> int:
    """CRC-32 of a tensor's bytes, below 10^9: a number by which two clients see whether they hold the same."""
    return zlib.crc32(vector.contiguous().numpy().data) % 10**9


def head_place(layout: Layout) -> slice:
    """Where the last layer, the module `head`, stands in the vector."""
    parts = [s for s in layout if s.name.partition(".")[0] == "head"]
    if not parts or any(a.stop != b.start for a, b in pairwise(parts)):
        raise ValueError("this network has no part called `head` in one piece")
    return slice(parts[0].start, parts[-1].stop)


def head_of(x: Tensor, layout: Layout) -> Tensor:
    """A copy of the last layer's numbers."""
    return x[head_place(layout)].clone()


def with_head(x: Tensor, head: Tensor, layout: Layout) -> Tensor:
    """A copy of x with these numbers in its last layer."""
    out = x.clone()
    out[head_place(layout)] = head
    return out


def without_heads(tensors: Mapping[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """These tensors without shared auxiliary heads: neither by name nor as numbers in a whole model (P,)."""
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{AUXILIARY}.")}
    if not layout.heads:
        return kept
    models = [name for name, tensor in kept.items() if tensor.shape == (layout.size,)]
    cut = {name: torch.cat([kept[name][: layout.main], kept[name][layout.trainable :]]) for name in models}
    return kept | cut


def norm_pairs(layout: Layout) -> list[tuple[slice, slice]]:
    """Where the running (mean, variance) of each BatchNorm stand among the buffers."""
    at = {s.name: slice(s.start - layout.trainable, s.stop - layout.trainable) for s in layout}
    means = [name for name in at if name.endswith("running_mean")]
    return [(at[name], at[name.removesuffix("mean") + "var"]) for name in means]


class FlatModel:
    """A module whose parameters, gradients and buffers are views of three vectors.

    One model serves all clients of a process: `load` replaces its weights, `read` returns a copy.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        self.module = module.to(device)
        self.layout = layout_of(module)
        self.theta = vector_from(
            {n: t.detach().cpu() for n, t in [*module.named_parameters(), *module.named_buffers()]}, self.layout
        ).to(device)
        self.grad = torch.zeros(self.layout.trainable, device=device)
        parameters = dict(module.named_parameters())
        owners = dict(module.named_modules())
        for s in self.layout:
            if s.kind == "parameter":
                parameters[s.name].data = view_of(self.theta, s)
                parameters[s.name].grad = view_of(self.grad, s)
            else:
                path, _, leaf = s.name.rpartition(".")
                owners[path]._buffers[leaf] = view_of(self.theta, s)

    @property
    def trainable(self) -> Tensor:
        """The parameters' part of theta, as a view."""
        return self.theta[: self.layout.trainable]

    def load(self, vector: Tensor) -> None:
        if vector.shape != self.theta.shape:
            raise ValueError(f"a vector of {tuple(vector.shape)} does not fit this model of {tuple(self.theta.shape)}")
        self.theta.copy_(vector)

    def read(self) -> Tensor:
        """A copy of theta on the CPU."""
        return self.theta.detach().to("cpu", copy=True)


def digest_weights(theta: Tensor) -> Tensor:
    """Sixteen bytes that distinguish one vector of weights from another."""
    content = theta.detach().cpu().contiguous().numpy().tobytes()
    return torch.frombuffer(bytearray(hashlib.sha256(content).digest()[:16]), dtype=torch.uint8)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; to a GPU through pinned memory, so that the host does not wait for the copy."""
    if tensor.device.type == device.type:
        return tensor
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def wide(device: torch.device) -> torch.dtype:
    """float64 where the device has it: sums over steps are taken in it."""
    return torch.float32 if device.type == "mps" else torch.float64
