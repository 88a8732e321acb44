"""Building blocks of a radiograph: edges, path lengths through ellipsoids, smooth noise, trees of vessels.

Coordinates run from -1 to 1 across the image, y downwards. A radiograph is a sum of path lengths through tissue,
so everything here is a thickness that can be added to or taken from another one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from fdamed.core.rng import stream

Field = NDArray[np.floating[Any]]
"""Always float32: plain Python numbers do not widen it."""
Length = Field | float
Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]
Reals = NDArray[np.float64]
Words = NDArray[np.object_]
TREES = 16
"""Vessel trees to choose from; each is also mirrored, shifted and scaled."""
TREE_SIZE = 320


def step(distance: Field, width: Length) -> Field:
    """0 to 1 over `width` around distance 0, smooth; without exp, which would cost more than all the rest."""
    t: Field = np.clip(distance / width + 0.5, 0, 1)
    return t * t * (3 - 2 * t)


def path_length(q: Field) -> Field:
    """Relative path through an ellipsoid whose border is q = 1: a sharp rim and a flat middle."""
    return np.sqrt(np.maximum(1 - q, 0))


def ellipsoid(x: Field, y: Field, center: tuple[Length, Length], radii: tuple[Length, Length]) -> Field:
    """Path length through an upright ellipsoid."""
    horizontal = (x - center[0]) / radii[0]
    vertical = (y - center[1]) / radii[1]
    return path_length(horizontal * horizontal + vertical * vertical)


def tilted(x: Field, y: Field, center: tuple[Length, Length], radii: tuple[Length, Length], angle: Length) -> Field:
    """Path length through an ellipsoid turned by `angle` (radians, clockwise on the image)."""
    turn = np.asarray(angle, dtype=np.float32)
    c, s = np.cos(turn), np.sin(turn)
    dx, dy = x - center[0], y - center[1]
    along = (dx * c + dy * s) / radii[0]
    across = (dy * c - dx * s) / radii[1]
    return path_length(along * along + across * across)


def bump(x: Field, y: Field, center: tuple[float, float], radii: tuple[float, float]) -> Field:
    """A soft hill of height 1 that ends at about twice its radii."""
    horizontal = (x - center[0]) * (1 / radii[0])
    vertical = (y - center[1]) * (1 / radii[1])
    r: Field = np.maximum(1 - 0.25 * (horizontal * horizontal + vertical * vertical), 0)
    return r * (r * r)


def mottle(rng: np.random.Generator, size: int, grain: int) -> Field:
    """Smooth noise (size, size) of standard deviation about 1 with `grain` cells on each side."""
    coarse = Image.fromarray(rng.standard_normal((grain, grain), dtype=np.float32))
    return np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC))


@cache
def _tree(number: int) -> Image.Image:
    """Pulmonary vessels of both lungs on the square -1..1, 255 = thick."""
    # The bank of trees is the same for every cohort; zoom, shift and mirror make them different.
    rng = stream(0, "vessels", number).numpy
    scale = TREE_SIZE / 2
    image = Image.new("L", (TREE_SIZE, TREE_SIZE))
    draw = ImageDraw.Draw(image)
    for side in (-1, 1):
        tips = [(side * 0.17, -0.12, a, 6.5) for a in rng.uniform(-1.45, 1.45, 9)]
        while tips:
            x, y, angle, width = tips.pop()
            length = rng.uniform(0.05, 0.13)
            angle += rng.normal(0, 0.16)
            to_x, to_y = x + side * np.cos(angle) * length, y + np.sin(angle) * length
            bright = int(70 + 22 * width)
            ends = [((x + 1) * scale, (y + 1) * scale), ((to_x + 1) * scale, (to_y + 1) * scale)]
            draw.line([*ends[0], *ends[1]], fill=min(bright, 255), width=max(1, round(width * 0.8)))
            if width > 1.0 and abs(to_x) < 0.75:
                tips.append((to_x, to_y, angle + rng.normal(0, 0.1), width * 0.78))
                if rng.random() < 0.75:
                    fork = rng.choice((-1, 1)) * rng.uniform(0.35, 0.8)
                    tips.append((to_x, to_y, angle + fork, width * 0.62))
    wide = Image.new("L", (2 * TREE_SIZE, 2 * TREE_SIZE))
    wide.paste(image.filter(ImageFilter.GaussianBlur(1.1)), (TREE_SIZE // 2, TREE_SIZE // 2))
    return wide


@cache
def _small_tree(number: int, shrink: int) -> Image.Image:
    """The tree on the square -2..2 at a resolution that suits the wanted size, mirrored for odd numbers."""
    tree = _tree(number // 2 % TREES)
    if number % 2:
        tree = tree.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return tree.reduce(shrink) if shrink > 1 else tree


def vessels(number: int, size: int, zoom: float, shift: tuple[float, float]) -> Field:
    """Vessels (size, size) in 0..1, zoomed and shifted as the patient is; an odd `number` is a mirrored tree."""
    shrink = max(1, TREE_SIZE // size)
    tree = _small_tree(number % (2 * TREES), shrink)
    quarter = TREE_SIZE / 2 / shrink
    scale, offset = 2 / size / zoom * quarter, 2 * quarter
    x, y = ((-1 - s) / zoom * quarter + offset for s in shift)
    mapped = tree.transform(
        (size, size), Image.Transform.AFFINE, (scale, 0, x, 0, scale, y), resample=Image.Resampling.BILINEAR
    )
    return np.asarray(mapped, dtype=np.float32) * np.float32(1 / 255)
