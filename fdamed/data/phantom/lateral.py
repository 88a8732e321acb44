"""The lateral projection: sternum in front (left), spine behind, both lungs upon each other."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from fdamed.data.phantom.anatomy import Chest, Scene, grid
from fdamed.data.phantom.primitives import ellipsoid, path_length, step, tilted, vessels


def lateral(chest: Chest, size: int) -> Scene:
    """The lateral projection (b, size, size)."""
    across, x, y = grid(chest, size)
    c = {f.name: getattr(chest, f.name)[:, None, None] for f in fields(chest)}
    v = (y - c["apex"]) / (c["base"] - c["apex"])
    deep = 0.82 * c["width"] / 0.66 + 0.04 * c["kyphosis"]

    # Trunk: an egg, thicker at the belly; the raised arms close it at the top.
    front = -deep - 0.10 - 0.4 * c["fat"] + 0.22 * step(-0.35 - y, 0.7)
    back = deep + 0.10 + 0.2 * c["fat"] - 0.16 * step(-0.45 - y, 0.6)
    middle, half = (front + back) / 2, (back - front) / 2
    ratio = (x - middle) / half
    density = path_length(ratio * ratio)
    density *= 1.06 + 0.1 * step(y + 0.2, 1.0) + 0.5 * c["fat"]

    # Lungs: behind the sternum, in front of and beside the spine, above two domes.
    opening = np.sqrt(np.maximum(1 - np.maximum(1 - v, 0) ** 2.2, 0))
    sternum = 0.06 - (deep + 0.06) * opening
    spine_x = 0.30 + (0.14 + 0.22 * c["kyphosis"]) * (1 - (2 * (v - 0.55)) ** 2) + 0.1 * c["width"]
    posterior = np.where(v > 0, 0.10 + (deep - 0.14) * opening, -1)
    lung = step(np.minimum(x - sternum, posterior - x) - 0.015, 0.045)
    bow = across + 0.10
    floor = c["base"] - np.maximum(c["lift_right"], c["lift_left"]) + (0.10 + 0.62 * bow) * bow
    second = floor + 0.05 + 0.6 * np.abs(c["dome"])
    lung *= 0.62 * step(floor - y, 0.03) + 0.38 * step(second - y, 0.03)

    big = c["heart"]
    heart = tilted(x, y, (-0.33, c["base"] - 0.17), (0.36 * big, 0.29 * big), -0.6)
    arch = tilted(x, y, (0.02, c["apex"] + 0.42), (0.26, 0.11), 0.9)
    lung *= 1 - 0.72 * np.maximum(heart, 0.35 * arch)
    density -= 0.70 * lung * (0.72 + 0.28 * step(0.45 - np.abs(v - 0.5), 0.9))
    density += 0.05 * heart

    tree = np.stack(
        [
            vessels(int(n), size, float(0.8 * z), (float(sx), float(sy)))
            for n, z, sx, sy in zip(chest.number, chest.zoom, chest.shift_x, chest.shift_y, strict=True)
        ]
    )
    density += 0.12 * c["vessel"] * tree * (0.2 + 0.8 * lung)
    density += 0.12 * c["vessel"] * ellipsoid(x, y, (0.04, -0.1), (0.13, 0.14))

    cage = step(np.minimum(x - sternum + 0.03, posterior + 0.06 - x), 0.04) * step(v - 0.02, 0.1) * step(1.25 - v, 0.3)
    phase = (y + 0.42 * x + 0.25 * x * x) / c["rib_space"] + c["rib_phase"]
    density += 0.055 * cage * step(0.17 - np.abs(phase - np.rint(phase)), 0.06)
    other = phase * 0.94 + 0.37
    density += 0.035 * cage * step(0.15 - np.abs(other - np.rint(other)), 0.08)
    off = np.abs(x - spine_x)
    discs = np.abs(y / 0.115 - np.rint(y / 0.115))
    density += step(0.085 - off, 0.04) * (0.10 + 0.06 * step(discs - 0.12, 0.08)) * (1.1 - 0.3 * step(v - 0.3, 1.0))
    density += 0.14 * step(0.022 - np.abs(x - sternum + 0.045), 0.02) * step(v - 0.1, 0.1) * step(0.75 - v, 0.2)
    density -= 0.12 * step(0.036 - np.abs(x + 0.06 - 0.25 * (y + 0.6)), 0.03) * step(-0.3 - y, 0.2)
    radii = (0.1 + 0.16 * c["breast"], 0.2 + 0.1 * c["breast"])
    breast = ellipsoid(x, y, (front + 0.06, 0.12 + 0.1 * c["breast"]), radii)
    density += 0.24 * c["breast"] * breast
    np.maximum(density, 0, out=density)
    edge = np.broadcast_to(np.maximum(posterior, 0.2), y.shape)
    return Scene(density, lung, tree, x, y, edge, floor)
