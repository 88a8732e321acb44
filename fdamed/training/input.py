"""Batches of images on the device that trains: gathered, sent, augmented and noised, without a wait for the device."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fdamed.core.rng import Stream
from fdamed.data.loader import Labeled, Unlabeled
from fdamed.models.flat import sent
from fdamed.ops.philox import normal, words

_HELD: OrderedDict[tuple[int, torch.device], Tensor] = OrderedDict()
"""Images on a GPU, by their array; those used last are last."""
_PROCESSES = [1]
SHARE = 0.5
"""Of the GPU memory that is free at first: for the images of all clients together."""


def held(data: Labeled | Unlabeled, device: torch.device) -> Tensor:
    """All images as one tensor: a view of the memory map; on a GPU a copy there, if it fits into the budget of images.

    The copies of clients that were not in use for the longest time make room for it.
    """
    here = torch.from_numpy(data.images)
    if device.type != "cuda" or here.nbytes > budget(device):
        return here
    key = id(data.images), device
    if key not in _HELD:
        while sum(t.nbytes for t in _HELD.values()) + here.nbytes > budget(device):
            _HELD.popitem(last=False)
        _HELD[key] = here.to(device)
        weakref.finalize(data.images, _HELD.pop, key, None)
    _HELD.move_to_end(key)
    return _HELD[key]


@lru_cache
def budget(device: torch.device) -> int:
    """Bytes of images that this process may keep on a GPU, decided at the first question."""
    free, total = torch.cuda.mem_get_info(device)
    return int(min(free, total / _PROCESSES[0]) * SHARE)


def share_device(processes: int) -> None:
    """So many processes use one GPU: each keeps its part of the images there."""
    _PROCESSES[0] = processes


def taken(images: Tensor, rows: Tensor, device: torch.device) -> Tensor:
    """The images of these rows (of the host) on the device."""
    if images.device.type == device.type:
        return images.index_select(0, sent(rows, device))
    return sent(images.index_select(0, rows), device)


def feed(images: Tensor, drawn: Iterable[Tensor], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """(rows, images) of each batch of an epoch on the device; the rows of all batches are sent to a GPU at once."""
    if device.type == "cpu":
        for rows in drawn:
            yield rows, images.index_select(0, rows)
        return
    parts = list(drawn)
    if not parts:
        return
    there = torch.split(sent(torch.cat(parts), device), [len(rows) for rows in parts])
    if images.device.type == device.type:
        for rows in there:
            yield rows, images.index_select(0, rows)
    else:
        yield from zip(there, _ahead(images, parts, device), strict=True)


def _ahead(images: Tensor, parts: list[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Each batch from the host; on CUDA it is copied on a second stream while the batch before it trains."""
    if device.type != "cuda":
        for rows in parts:
            yield images.index_select(0, rows).to(device)
        return
    copies = _second_stream(device)
    trains = torch.cuda.current_stream(device)

    def copied(rows: Tensor) -> Tensor:
        batch = images.index_select(0, rows).pin_memory()
        with torch.cuda.stream(copies):
            return batch.to(device, non_blocking=True)

    following = copied(parts[0])
    for number in range(len(parts)):
        current = following
        trains.wait_stream(copies)
        current.record_stream(trains)
        if number + 1 < len(parts):
            following = copied(parts[number + 1])
        yield current


@lru_cache
def _second_stream(device: torch.device) -> Any:
    """One for the whole process: torch keeps freed memory for each stream apart."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def as_input(images: Tensor) -> Tensor:
    """uint8 (B, S, S) or (B, S, S, C) -> float32 (B, C, S, S) in [0, 1]; feature vectors (B, d) as they are."""
    if images.dtype != torch.uint8:
        return images
    stacked = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2)
    return stacked.to(torch.float32).div_(255.0)


def prepared(
    images: Tensor, rows: Tensor, device: torch.device, rng: Stream, *at: int, augment: bool = False, noise: float = 0.0
) -> Tensor:
    """The network's input for these rows (of the host), augmented and noised with the numbers of batch `at`."""
    return varied(taken(images, rows, device), sent(rows, device), rng, *at, augment=augment, noise=noise)


def varied(images: Tensor, rows: Tensor, rng: Stream, *at: int, augment: bool = False, noise: float = 0.0) -> Tensor:
    """The network's input from images and their rows on one device, with the numbers of batch `at` (epoch, number)."""
    x = as_input(images)
    if augment and len(x):
        x = jitter(x, rows, rng.child("augment", *at))
    return noisy(x, rows, noise, rng.child("noise", *at)) if noise else x


def noisy(x: Tensor, rows: Tensor, deviation: float, rng: Stream) -> Tensor:
    """x + deviation * N(0, 1), not clipped; the numbers of a row are its own."""
    return x.add(normal(rng, rows, x[:1].numel()).view(x.shape), alpha=deviation) if len(x) else x


def jitter(x: Tensor, rows: Tensor, rng: Stream) -> Tensor:
    """Shift each image by up to a sixteenth of its side and change its contrast by up to a tenth.

    A shift repeats the pixels of the border.
    """
    n, channels, side = len(x), x.shape[1], x.shape[-1]
    reach = max(1, side // 16)
    drawn = words(rng, rows, 3)
    places = torch.arange(-reach, side - reach, device=x.device)
    down, across = (((drawn[:, k : k + 1] * (2 * reach + 1)) >> 32).add(places).clamp_(0, side - 1) for k in (0, 1))
    gains = drawn[:, 2].float().mul_(0.2 * 2.0**-32).add_(0.9).view(n, 1, 1, 1)
    lines = torch.arange(0, n * side, side, device=x.device).unsqueeze(1) + down
    moved = x.permute(0, 2, 3, 1).reshape(n * side, side, channels).index_select(0, lines.flatten())
    moved = moved.view(n, side, side, channels).gather(2, across.view(n, 1, side, 1).expand(n, side, side, channels))
    return moved.permute(0, 3, 1, 2).sub(0.5).mul_(gains).add_(0.5).clamp_(0.0, 1.0)
