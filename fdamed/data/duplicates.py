"""Near-duplicates: the same exposure twice, as another file, another compression, another window or moved by a pixel.

Three sieves, each finer and slower: a 64-bit DCT hash, the correlation of 16 x 16 thumbnails, and the correlation of
structure without the slow changes of gray, either at rest (32 x 32; blind to noise and compression) or at the best
small shift (128 x 128; blind to movement). The last one separates a copy from another image of
the same patient: the outline of a thorax hardly changes, its ribs and vessels never lie in the same places twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn, irfft2, rfft2
from scipy.ndimage import gaussian_filter

BITS = 12
"""Hash bits that may differ: copies moved by one pixel of 128 differ in up to 12 of 64."""
COARSE = 0.965
"""Least correlation of the 16 x 16 thumbnails; such copies have at least 0.975."""
REST = 0.965
"""Least correlation of structure at rest. NIH: JPEG copies of quality 20 at least 0.967, other images at most 0.962."""
ALIGNED = 0.95
"""Least correlation of structure at the best shift. NIH: moved copies at least 0.98, other images at most 0.94."""
SHIFT = 4
"""Largest shift looked at, in pixels of the 128 x 128 image."""
SIDE = 128
SMALLEST = 32
"""Below this size two radiographs cannot be distinguished from two copies."""
BLOCK, MANY, PAIRS = 1024, 65_536, 256
"""Images, coarse thumbnails and structures compared at a time: bounds the memory."""


class Pair(NamedTuple):
    """Two rows that show the same exposure; `likeness` is the greater of the two correlations of structure."""

    first: int
    second: int
    likeness: float


def near_duplicates(thumbs: NDArray[np.uint8], groups: NDArray[Any]) -> list[Pair]:
    """Pairs of near-duplicates among `thumbs` (n, S, S), S at least 32, whose `groups` (n,) differ; first < second."""
    _, codes = np.unique(np.asarray(groups), return_inverse=True)
    hashes, coarse = signatures(thumbs)
    out: list[Pair] = []
    for block in _blocks(len(thumbs), BLOCK):
        near = np.bitwise_count(hashes[block, None] ^ hashes[None, block.start :]) <= BITS
        near &= codes[block, None] != codes[None, block.start :]
        pairs = np.argwhere(np.triu(near, 1)) + block.start
        alike = [np.einsum("ij,ij->i", *coarse[pairs[b].T]) >= COARSE for b in _blocks(len(pairs), MANY)]
        pairs = pairs[np.concatenate([np.zeros(0, dtype=bool), *alike])]
        for few in _blocks(len(pairs), PAIRS):
            rest, aligned = likeness(*(thumbs[rows] for rows in pairs[few].T))
            same, best = (rest >= REST) | (aligned >= ALIGNED), np.maximum(rest, aligned)
            out += [Pair(int(i), int(j), float(c)) for (i, j), c in zip(pairs[few][same], best[same], strict=True)]
    return sorted(out)


def _blocks(count: int, size: int) -> list[slice]:
    return [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]


def thumbnails(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images (n, S, S) no larger than the finest sieve needs, block by block: a cohort's worth fits into memory."""
    if images.shape[1] <= SIDE:
        return np.array(images)
    blocks = _blocks(len(images), BLOCK)
    return np.concatenate([block_mean(images[block], SIDE).round().astype(np.uint8) for block in blocks])


def signatures(thumbs: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
    """Hash (n,) and unit vectors (n, 256) of the images."""
    hashes = np.empty(len(thumbs), dtype=np.uint64)
    coarse = np.empty((len(thumbs), 256), dtype=np.float32)
    index = sorted(((i, j) for i in range(9) for j in range(9) if i + j > 0), key=lambda t: (t[0] + t[1], t))[:64]
    rows, columns = np.array(index).T
    for block in _blocks(len(thumbs), BLOCK):
        small = block_mean(thumbs[block], SMALLEST)
        lowest = dctn(small, axes=(1, 2), norm="ortho")[:, rows, columns]
        bits = lowest > np.median(lowest, axis=1, keepdims=True)
        hashes[block] = np.ascontiguousarray(np.packbits(bits, axis=1)).view(np.uint64)[:, 0]
        coarse[block] = _unit(block_mean(small, 16).reshape(len(small), -1))
    return hashes, coarse


def likeness(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Correlation of structure of image pairs (n, S, S): at rest (n,) and at the best shift (n,)."""
    still = [_structure(images, 32, 0, 2) for images in (first, second)]
    rest = np.einsum("nij,nij->n", *still)
    side = min(SIDE, first.shape[1])
    faded = [_structure(i, side, 0.8 * side / 128, side / 32, fade=True) for i in (first, second)]
    spectra = [rfft2(f, axes=(1, 2)) for f in faded]
    surface = irfft2(spectra[0] * np.conj(spectra[1]), s=(side, side), axes=(1, 2))
    moves = np.arange(-SHIFT, SHIFT + 1)
    return rest, surface[:, moves[:, None], moves[None, :]].max(axis=(1, 2))


def _structure(
    images: NDArray[np.uint8], side: int, finest: float, coarsest: float, fade: bool = False
) -> NDArray[np.float32]:
    """Images (n, side, side) between two Gaussian scales, with norm 1; `fade`: down to nothing at the border."""
    small = block_mean(images, side)
    smooth = gaussian_filter(small, (0, finest, finest)) if finest else small
    out = smooth - gaussian_filter(small, (0, coarsest, coarsest))
    if fade:
        edge = np.hanning(side + 2)[1:-1].astype(np.float32) ** 0.5
        out = out * edge[:, None] * edge
    return _unit(out.reshape(len(out), -1)).reshape(out.shape)


def _unit(flat: NDArray[np.float32]) -> NDArray[np.float32]:
    centered = flat - flat.mean(axis=1, keepdims=True)
    norm = np.linalg.norm(centered, axis=1, keepdims=True)
    return np.asarray(centered / np.maximum(norm, 1e-12), dtype=np.float32)


def block_mean(images: NDArray[Any], side: int) -> NDArray[np.float32]:
    """(n, S, S) -> (n, side, side) by area average; S need not be a multiple of `side`."""
    size = images.shape[1]
    edges = np.arange(side + 1) * size / side
    cover = np.clip(
        np.minimum(np.arange(size) + 1, edges[1:, None]) - np.maximum(np.arange(size), edges[:-1, None]), 0, 1
    )
    weight = (cover / cover.sum(axis=1, keepdims=True)).astype(np.float32)
    return np.asarray(weight @ images.astype(np.float32) @ weight.T, dtype=np.float32)
