"""A patient's chest: the numbers that make it individual, and the frontal radiograph that follows from them."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from fdamed.data.phantom.primitives import Field, ellipsoid, path_length, step, tilted, vessels


@dataclass(frozen=True)
class Chest:
    """One number an image, shape (n,), float32; lengths in half image widths."""

    male: Field
    age: Field
    """Years."""
    supine: Field
    """1: AP, lying or sitting; 0: PA, standing."""
    shift_x: Field
    shift_y: Field
    zoom: Field
    tilt: Field
    width: Field
    """Half width of the thorax."""
    apex: Field
    base: Field
    """Height of the lung's apex and of the right dome of the diaphragm."""
    dome: Field
    """Difference between the domes; positive: the left one is lower."""
    lift_right: Field
    lift_left: Field
    """How far a finding draws a dome upwards."""
    heart: Field
    """Relative size of the heart."""
    fat: Field
    breast: Field
    kyphosis: Field
    calcium: Field
    rib_phase: Field
    rib_space: Field
    clavicle: Field
    vessel: Field
    """Strength of the vessels."""
    arms: Field
    stomach: Field
    number: NDArray[np.int64]
    """Number of the vessel tree."""

    def at(self, rows: slice | NDArray[np.int64]) -> Chest:
        return Chest(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


@dataclass(frozen=True)
class Scene:
    """A radiograph before findings and scanner: everything has shape (b, size, size) unless said."""

    density: Field
    """Tissue in the beam; 0 = air, about 1 = mediastinum."""
    lung: Field
    """Share of the beam's chest path that is aerated lung, 0..1."""
    tree: Field
    """Vessels, 0..1."""
    x: Field
    """Body coordinate, (b, size, size): 0 on the midline, negative = right side (frontal) or front (lateral)."""
    y: Field
    """Body coordinate, (b, size, 1)."""
    edge: Field
    """Half width of the lung field at each height, (b, size, 1)."""
    floor: Field
    """Height of the diaphragm, (b, size, size) or (b, 1, size)."""


def grid(chest: Chest, size: int) -> tuple[Field, Field, Field]:
    """Body coordinates: x of the columns (b, 1, size), the same tilted (b, size, size), y of the rows (b, size, 1)."""
    line = (np.arange(size, dtype=np.float32) + 0.5) * np.float32(2 / size) - 1
    zoom = chest.zoom[:, None, None]
    across = (line[None, None, :] - chest.shift_x[:, None, None]) / zoom
    y = (line[None, :, None] - chest.shift_y[:, None, None]) / zoom
    return across, across + chest.tilt[:, None, None] * y, y


def frontal(chest: Chest, size: int) -> Scene:
    """The frontal projection (b, size, size)."""
    across, x, y = grid(chest, size)
    c = {f.name: getattr(chest, f.name)[:, None, None] for f in fields(chest)}
    u = np.abs(x)
    left = (across > 0).astype(np.float32)

    # Outline of the body: neck, shoulders, trunk; the trunk is an ellipse seen from the front.
    neck = 0.24 + 0.03 * c["male"] + 0.25 * c["fat"]
    shoulder = 1.22 + 0.1 * c["male"] + 0.3 * c["fat"]
    trunk = c["width"] + 0.17 + 0.6 * c["fat"] + 0.5 * c["arms"]
    outline = neck + (shoulder - neck) * step(y + 0.86, 0.36 + 0.3 * c["fat"])
    outline -= np.maximum(shoulder - trunk, 0) * step(y + 0.25, 0.8)
    outline += 0.07 * step(y - 0.75, 0.9)
    ratio = u / outline
    ratio *= ratio
    thickness = 0.8 + 0.24 * step(y + 0.4, 1.0) + 0.5 * c["fat"]
    density = path_length(ratio)
    density *= thickness

    # The lungs: between the mediastinum, the ribs' inner side and the diaphragm.
    v = (y - c["apex"]) / (c["base"] - c["apex"])
    opening = np.sqrt(np.maximum(1 - np.maximum(1 - v, 0) ** 2.5, 0)) * (v > 0)
    middle = 0.30 * c["width"] / 0.66
    bulge = 0.05 * step(0.55 - np.abs(v - 0.72), 1.1) - 0.02
    edge = np.where(v > 0, middle + (c["width"] + bulge - middle) * opening, -1)
    inner = middle - (middle - 0.135) * np.minimum(opening * 1.35, 1)
    inside = np.minimum(edge - u, u - (inner - 0.012 * left))
    lung = step(inside - 0.012, 0.035)
    lift = c["lift_right"] + (c["lift_left"] - c["lift_right"]) * left
    bow = (np.abs(across) - 0.34 * c["width"] / 0.66) / 0.36
    floor = c["base"] - lift + c["dome"] * left + (0.10 + 0.05 * c["supine"]) * bow * bow
    lung *= step(floor - y, 0.035)

    # Heart and great vessels take the place of lung.
    size_h = c["heart"]
    center_h = (0.09 + 0.10 * (size_h - 1), c["base"] - 0.17 - 0.05 * (size_h - 1))
    heart = tilted(x, y, center_h, (0.37 * size_h, 0.255 * size_h), 0.72 - 0.25 * c["supine"])
    atrium = ellipsoid(x, y, (-0.05, c["base"] - 0.21), (0.17 * size_h, 0.25 * size_h))
    knob_y = c["apex"] + 0.44
    knob = ellipsoid(x, y, (0.09, knob_y), (0.095 + 0.03 * c["kyphosis"], 0.12))
    trunk_v = tilted(x, y, (0.10, knob_y + 0.25), (0.26, 0.115), 1.25)
    solid = np.maximum(np.maximum(heart, atrium), np.maximum(knob, trunk_v))
    lung *= 1 - 0.93 * solid

    depth = 0.80 + 0.20 * step(0.5 - np.abs(v - 0.55), 0.9)
    density -= (0.66 - 0.06 * c["supine"]) * lung * depth
    density += (0.10 + 0.03 * c["supine"]) * heart

    # Vessels and hila.
    tree = np.stack(
        [
            vessels(int(n), size, float(z), (float(sx), float(sy)))
            for n, z, sx, sy in zip(chest.number, chest.zoom, chest.shift_x, chest.shift_y, strict=True)
        ]
    )
    density += 0.17 * c["vessel"] * tree * (0.25 + 0.75 * lung)
    hilum = ellipsoid(u, y, (0.2, -0.1 - 0.03 * left), (0.09, 0.15))
    density += 0.10 * c["vessel"] * hilum

    _bones(density, c, u, x, y, v, edge, floor)
    _soft_tissue(density, c, u, across, y)
    return Scene(density, lung, tree, x, y, edge, floor)


def _band(phase: Field, half: float, soft: float) -> Field:
    """A periodic band with brighter rims, as a hollow bone has."""
    distance = np.abs(phase - np.rint(phase))
    inside = step(half - distance, soft)
    distance -= half - 0.05
    np.abs(distance, out=distance)
    inside += 0.7 * step(0.04 - distance, 0.06)
    return inside


def _bones(
    density: Field, c: dict[str, Field], u: Field, x: Field, y: Field, v: Field, edge: Field, floor: Field
) -> None:
    size = density.shape[1]
    cage = step(edge + 0.035 - u, 0.03)
    cage *= step(v + 0.04, 0.08) * (1 - 0.8 * step(v - 1.3, 0.5))
    cage *= 1 - 0.65 * step(y - floor, 0.1)
    young = 1.12 - 0.004 * c["age"]
    reach = u / edge.clip(0.2)
    # Posterior ribs fall slowly to the side; anterior ones come back steeply towards the middle.
    fall = (0.26 * reach - 0.42) * reach
    posterior = _band((y + fall * (0.55 + 0.35 * v)) / c["rib_space"] + c["rib_phase"], 0.21, 0.05)
    density += 0.070 * young * posterior * cage
    rise = 0.34 * reach * (0.4 + 0.6 * v.clip(0, 1.2))
    anterior = _band((y + rise) / (c["rib_space"] * 1.16) + c["rib_phase"] * 1.7, 0.24, 0.07)
    sternal = 0.42 - 0.14 * c["calcium"]
    density += 0.042 * young * anterior * cage * step(reach - sternal, 0.25) * step(v - 0.2, 0.3)
    density += 0.05 * step(0.035 - np.abs(u - edge - 0.01), 0.05) * step(v - 0.1, 0.2)

    spine = step(0.085 - u, 0.05)
    discs = np.abs(y / 0.105 - np.rint(y / 0.105))
    density += spine * (0.10 + 0.05 * step(discs - 0.13, 0.1) - 0.06 * step(0.05 - y, 0.8) * c["kyphosis"])
    trachea = step(0.038 - np.abs(x + 0.012), 0.03) * step(-0.36 - y, 0.2)
    density -= 0.13 * trachea

    # Clavicles and shoulders lie in the upper part only.
    top = slice(0, int(size * 0.55))
    ut, yt = u[:, top], y[:, top]
    line = c["apex"] + 0.20 - 0.08 * c["supine"] + c["clavicle"] - 0.30 * (ut - 0.1) + 0.22 * (ut - 0.45) ** 2
    off = np.abs(yt - line)
    bone = step(0.034 - off, 0.02) + 0.5 * step(0.012 - np.abs(off - 0.028), 0.014)
    density[:, top] += 0.115 * young * bone * step(ut - 0.10, 0.05) * step(0.82 - ut, 0.1)
    blade_x = 0.86 - 0.12 * c["supine"] + 0.35 * (yt + 0.45)
    blade = step(0.10 - np.abs(ut - blade_x), 0.16) * step(0.2 - np.abs(yt + 0.45), 0.12)
    density[:, top] += 0.06 * blade
    head = ellipsoid(ut, yt, (1.08, -0.58 + c["clavicle"]), (0.2, 0.16))
    density[:, top] += 0.09 * head

    speck = ellipsoid(x, y, (0.16, c["apex"] + 0.38), (0.045, 0.06))
    density += 0.10 * c["calcium"] * (speck > 0) * (speck < 0.6)


def _soft_tissue(density: Field, c: dict[str, Field], u: Field, across: Field, y: Field) -> None:
    size = density.shape[1]
    low = slice(int(size * 0.3), size)
    ul, yl = u[:, low], y[:, low]
    sag = 0.10 + 0.12 * c["breast"]
    radii = (0.24 + 0.12 * c["breast"], 0.22 + 0.16 * c["breast"])
    mass = ellipsoid(ul, yl, (0.40 + 0.1 * c["fat"], sag), radii)
    mass *= step(yl - sag + 0.1, 0.4) * 0.5 + 0.5
    density[:, low] += 0.22 * c["breast"] * mass
    radii = (0.16 * c["stomach"] + 0.02, 0.09 * c["stomach"] + 0.02)
    bubble = ellipsoid(across, yl, (0.34, c["base"] + 0.24), radii)
    density[:, low] -= 0.28 * c["stomach"] * bubble * step(yl - c["base"] - 0.16, 0.1)
    high = slice(0, int(size * 0.6))
    pectoral = step(0.16 - np.abs(u[:, high] - 0.72), 0.3) * step(0.3 - np.abs(y[:, high] + 0.3), 0.3)
    density[:, high] += 0.06 * (0.4 + 0.6 * c["male"]) * pectoral
    np.maximum(density, 0, out=density)
