"""From tissue in the beam to pixel values: scatter, blur, quantum noise, the scanner's curve, markers."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy.special import ndtri

from fdamed.data.phantom.population import Shift
from fdamed.data.phantom.primitives import Field, mottle

FULL = 4095
"""Pixel values are 12 bit, as a detector gives them."""
QUANTILES: Field = ndtri((np.arange(256) + 0.5) / 256).astype(np.float32)
"""Of the normal distribution."""


def grain(rng: np.random.Generator, size: int) -> Field:
    """White noise (size, size) from one random byte a pixel: ten times faster than a normal generator."""
    codes = np.frombuffer(rng.bytes(size * size), dtype=np.uint8)
    return QUANTILES[codes].reshape(size, size)


@cache
def _curve(gamma: float) -> NDArray[np.uint16]:
    """The scanner's curve as a table over 4,096 densities from -0.1 to 1.9: black air, a toe, a shoulder."""
    density = np.linspace(-0.1, 1.9, FULL + 1)
    straight = np.clip((density - 0.12) / 1.38, 0, 1)
    bent = straight ** np.exp(0.5 * gamma)
    shoulder = (1 - np.exp(-1.2 * bent)) / (1 - np.exp(-1.2))
    table: NDArray[np.uint16] = np.rint(shoulder * FULL).astype(np.uint16)
    return table


def expose(
    density: Field, size: int, shift: Shift, gain: float, rng: np.random.Generator, marker: int
) -> NDArray[np.uint16]:
    """One image: density (work, work) -> 12-bit pixels (size, size), white = dense."""
    work = density.shape[0]
    density += np.float32(0.022) * mottle(rng, work, 9)
    vignette = np.linspace(-1, 1, work, dtype=np.float32)
    lean = np.float32(rng.normal(0, 0.03))
    density -= np.float32(0.05) * (vignette**2)[:, None] - lean * vignette[None, :]
    image = Image.fromarray(density)
    if shift.blur > 0:
        # Blur is a loss of resolution: through a coarser grid and back.
        coarse = max(8, round(work / (1 + 1.1 * shift.blur * max(work, 96) / 100)))
        image = image.resize((coarse, coarse), Image.Resampling.BOX)
    out = np.array(image.resize((size, size), Image.Resampling.BICUBIC) if image.size != (size, size) else image)
    # Fewer quanta arrive behind dense tissue.
    sigma = np.float32((0.012 + 0.03 * shift.noise) * min(1.0, (size / 320) ** 0.5 + 0.25))
    out += grain(rng, size) * sigma * (0.6 + out)
    out += np.float32(0.1 + gain + 0.18 * shift.exposure)
    pixels = _curve(shift.gamma)[np.clip(out * np.float32(FULL / 2), 0, FULL).astype(np.uint16)]
    if marker:
        _stamp(pixels, marker, rng)
    return pixels


@cache
def _letter(text: str, height: int) -> NDArray[np.bool_]:
    image = Image.new("L", (height, height))
    ImageDraw.Draw(image).text((height // 6, 0), text, fill=255, font=ImageFont.load_default(size=height * 0.8))
    return np.asarray(image) > 96


def _stamp(pixels: NDArray[np.uint16], marker: int, rng: np.random.Generator) -> None:
    """The lead marker; `marker` 1: L at the right, 2: R at the left."""
    size = pixels.shape[0]
    letter = _letter("L" if marker == 1 else "R", max(6, size // 14))
    height = letter.shape[0]
    top = int(rng.integers(1, max(2, size // 6)))
    side = int(rng.integers(1, max(2, size // 16)))
    start = size - height - side if marker == 1 else side
    pixels[top : top + height, start : start + height][letter] = FULL - 200
