"""Radiographs of a healthy chest: the frontal and the lateral projection of a patient's anatomy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fdamed.data.phantom.anatomy import Chest
from fdamed.data.phantom.primitives import Field, ellipsoid, path_length, step, tilted, vessels


@dataclass(frozen=True)
class Scene:
    """A radiograph before the scanner: everything has shape (size, size) unless stated."""

    density: Field
    """Tissue in the beam; 0 = air, about 1 = mediastinum."""
    lung: Field
    """Share of the beam's chest path that is aerated lung, 0..1."""
    tree: Field
    """Vessels, 0..1."""
    x: Field
    """Body coordinate: 0 on the midline, negative = right side (frontal) or front (lateral)."""
    y: Field
    """Body coordinate, (size, 1)."""
    edge: Field
    """Half width of the lung field at each height, (size, 1)."""
    diaphragm: Field
    """Height of the diaphragm, (1, size)."""


def _grid(c: Chest, size: int) -> tuple[Field, Field, Field]:
    """Body coordinates: x of the columns (1, size), the same tilted (size, size), y of the rows (size, 1)."""
    line = (np.arange(size, dtype=np.float32) + 0.5) * np.float32(2 / size) - 1
    across = (line[None, :] - c.shift_x) / c.zoom
    y = (line[:, None] - c.shift_y) / c.zoom
    return across, across + c.tilt * y, y


def frontal(c: Chest, size: int) -> Scene:
    """The frontal projection of one image's chest."""
    across, x, y = _grid(c, size)
    u = np.abs(x)
    left = (across > 0).astype(np.float32)

    # Outline of the body: neck, shoulders, trunk; the trunk is an ellipse seen from the front.
    neck = 0.24 + 0.03 * c.male + 0.25 * c.fat
    shoulder = 1.22 + 0.1 * c.male + 0.3 * c.fat
    trunk = c.width + 0.17 + 0.6 * c.fat + 0.5 * c.arms
    outline = neck + (shoulder - neck) * step(y + 0.86, 0.36 + 0.3 * c.fat)
    outline -= np.maximum(shoulder - trunk, 0) * step(y + 0.25, 0.8)
    outline += 0.07 * step(y - 0.75, 0.9)
    density = path_length((u / outline) ** 2)
    density *= 0.8 + 0.24 * step(y + 0.4, 1.0) + 0.5 * c.fat

    # The lungs: between the mediastinum, the ribs' inner side and the diaphragm.
    v = (y - c.apex) / (c.base - c.apex)
    opening = np.sqrt(np.maximum(1 - np.maximum(1 - v, 0) ** 2.5, 0)) * (v > 0)
    middle = 0.30 * c.width / 0.66
    bulge = 0.05 * step(0.55 - np.abs(v - 0.72), 1.1) - 0.02
    edge = np.where(v > 0, middle + (c.width + bulge - middle) * opening, -1)
    inner = middle - (middle - 0.135) * np.minimum(opening * 1.35, 1)
    lung = step(np.minimum(edge - u, u - (inner - 0.012 * left)) - 0.012, 0.035)
    lift = c.lift_right + (c.lift_left - c.lift_right) * left
    bow = (np.abs(across) - 0.34 * c.width / 0.66) / 0.36
    diaphragm = c.base - lift + c.dome * left + (0.10 + 0.05 * c.supine) * bow * bow
    lung *= step(diaphragm - y, 0.035)

    # Heart and great vessels take the place of lung.
    center = (0.09 + 0.10 * (c.heart - 1), c.base - 0.17 - 0.05 * (c.heart - 1))
    heart = tilted(x, y, center, (0.37 * c.heart, 0.255 * c.heart), 0.72 - 0.25 * c.supine)
    atrium = ellipsoid(x, y, (-0.05, c.base - 0.21), (0.17 * c.heart, 0.25 * c.heart))
    knob_y = c.apex + 0.44
    knob = ellipsoid(x, y, (0.09, knob_y), (0.105 * c.knob, 0.12 * c.knob))
    pulmonary_trunk = tilted(x, y, (0.10, knob_y + 0.25), (0.26, 0.115), 1.25)
    lung *= 1 - 0.93 * np.maximum(np.maximum(heart, atrium), np.maximum(knob, pulmonary_trunk))
    density -= (0.66 - 0.06 * c.supine) * lung * (0.80 + 0.20 * step(0.5 - np.abs(v - 0.55), 0.9))
    density += (0.10 + 0.03 * c.supine) * heart

    # Vessels and hila.
    tree = vessels(int(c.tree), size, float(c.zoom), (float(c.shift_x), float(c.shift_y)))
    density += 0.17 * c.vessel * tree * (0.25 + 0.75 * lung)
    density += 0.10 * c.vessel * ellipsoid(u, y, (0.2, -0.1 - 0.03 * left), (0.09, 0.15))

    scene = Scene(density, lung, tree, x, y, edge, diaphragm)
    _bones(scene, c, u, v)
    _soft_tissue(density, c, u, across, y)
    return scene


def _band(phase: Field, half: float, soft: float) -> Field:
    """A periodic band with brighter rims, as a hollow bone has."""
    distance = np.abs(phase - np.rint(phase))
    inside = step(half - distance, soft)
    inside += 0.7 * step(0.04 - np.abs(distance - (half - 0.05)), 0.06)
    return inside


def _bones(scene: Scene, c: Chest, u: Field, v: Field) -> None:
    density, x, y, edge = scene.density, scene.x, scene.y, scene.edge
    cage = step(edge + 0.035 - u, 0.03)
    cage *= step(v + 0.04, 0.08) * (1 - 0.8 * step(v - 1.3, 0.5))
    cage *= 1 - 0.65 * step(y - scene.diaphragm, 0.1)
    reach = u / edge.clip(0.2)
    # Posterior ribs fall slowly to the side; anterior ones come back steeply towards the middle.
    fall = (0.26 * reach - 0.42) * reach
    posterior = _band((y + fall * (0.55 + 0.35 * v)) / c.rib_space + c.rib_phase, 0.21, 0.05)
    density += 0.070 * c.bone * posterior * cage
    rise = 0.34 * reach * (0.4 + 0.6 * v.clip(0, 1.2))
    anterior = _band((y + rise) / (c.rib_space * 1.16) + c.rib_phase * 1.7, 0.24, 0.07)
    sternal = 0.42 - 0.14 * c.calcium
    density += 0.042 * c.bone * anterior * cage * step(reach - sternal, 0.25) * step(v - 0.2, 0.3)
    density += 0.05 * c.bone * step(0.035 - np.abs(u - edge - 0.01), 0.05) * step(v - 0.1, 0.2)

    spine = step(0.085 - u, 0.05)
    discs = np.abs(y / 0.105 - np.rint(y / 0.105))
    column = 0.10 + 0.05 * step(discs - 0.13, 0.1) - 0.06 * step(0.05 - y, 0.8) * c.kyphosis
    density += c.bone * spine * column
    density -= 0.13 * (step(0.038 - np.abs(x + 0.012), 0.03) * step(-0.36 - y, 0.2))  # trachea

    # Clavicles and shoulders lie in the upper part only.
    top = slice(0, int(len(density) * 0.55))
    upper, ut, yt = density[top], u[top], y[top]
    line = c.apex + 0.20 - 0.08 * c.supine + c.clavicle - 0.30 * (ut - 0.1) + 0.22 * (ut - 0.45) ** 2
    off = np.abs(yt - line)
    bone = step(0.034 - off, 0.02) + 0.5 * step(0.012 - np.abs(off - 0.028), 0.014)
    upper += 0.115 * c.bone * bone * step(ut - 0.10, 0.05) * step(0.82 - ut, 0.1)
    blade_x = 0.86 - 0.12 * c.supine + 0.35 * (yt + 0.45)
    upper += 0.06 * (step(0.10 - np.abs(ut - blade_x), 0.16) * step(0.2 - np.abs(yt + 0.45), 0.12))
    upper += 0.09 * ellipsoid(ut, yt, (1.08, -0.58 + c.clavicle), (0.2, 0.16))

    speck = ellipsoid(x, y, (0.16, c.apex + 0.38), (0.045, 0.06))
    density += 0.10 * c.calcium * (speck > 0) * (speck < 0.6)


def _soft_tissue(density: Field, c: Chest, u: Field, across: Field, y: Field) -> None:
    size = len(density)
    low = slice(int(size * 0.3), size)
    lower, ul, yl = density[low], u[low], y[low]
    sag = 0.10 + 0.12 * c.breast
    mass = ellipsoid(ul, yl, (0.40 + 0.1 * c.fat, sag), (0.24 + 0.12 * c.breast, 0.22 + 0.16 * c.breast))
    mass *= step(yl - sag + 0.1, 0.4) * 0.5 + 0.5
    lower += 0.22 * c.breast * mass
    bubble = ellipsoid(across, yl, (0.34, c.base + 0.24), (0.16 * c.stomach + 0.02, 0.09 * c.stomach + 0.02))
    lower -= 0.28 * c.stomach * bubble * step(yl - c.base - 0.16, 0.1)
    high = slice(0, int(size * 0.6))
    pectoral = step(0.16 - np.abs(u[high] - 0.72), 0.3) * step(0.3 - np.abs(y[high] + 0.3), 0.3)
    density[high] += 0.06 * (0.4 + 0.6 * c.male) * pectoral
    np.maximum(density, 0, out=density)


def lateral(c: Chest, size: int) -> Scene:
    """The lateral projection: sternum in front (left), spine behind, both lungs upon each other."""
    across, x, y = _grid(c, size)
    v = (y - c.apex) / (c.base - c.apex)
    deep = 0.82 * c.width / 0.66 + 0.04 * c.kyphosis

    # Trunk: an egg, thicker at the belly; the raised arms close it at the top.
    front = -deep - 0.10 - 0.4 * c.fat + 0.22 * step(-0.35 - y, 0.7)
    back = deep + 0.10 + 0.2 * c.fat - 0.16 * step(-0.45 - y, 0.6)
    density = path_length(((x - (front + back) / 2) / ((back - front) / 2)) ** 2)
    density *= 1.06 + 0.1 * step(y + 0.2, 1.0) + 0.5 * c.fat

    # Lungs: behind the sternum, in front of and beside the spine, above two domes.
    opening = np.sqrt(np.maximum(1 - np.maximum(1 - v, 0) ** 2.2, 0))
    sternum = 0.06 - (deep + 0.06) * opening
    spine_x = 0.30 + (0.14 + 0.22 * c.kyphosis) * (1 - (2 * (v - 0.55)) ** 2) + 0.1 * c.width
    posterior = np.where(v > 0, 0.10 + (deep - 0.14) * opening, -1)
    lung = step(np.minimum(x - sternum, posterior - x) - 0.015, 0.045)
    bow = across + 0.10
    diaphragm = c.base - np.maximum(c.lift_right, c.lift_left) + (0.10 + 0.62 * bow) * bow
    second = diaphragm + 0.05 + 0.6 * np.abs(c.dome)
    lung *= 0.62 * step(diaphragm - y, 0.03) + 0.38 * step(second - y, 0.03)

    heart = tilted(x, y, (-0.33, c.base - 0.17), (0.36 * c.heart, 0.29 * c.heart), -0.6)
    arch = tilted(x, y, (0.02, c.apex + 0.42), (0.26, 0.11 * c.knob), 0.9)
    lung *= 1 - 0.72 * np.maximum(heart, 0.35 * arch)
    density -= 0.70 * lung * (0.72 + 0.28 * step(0.45 - np.abs(v - 0.5), 0.9))
    density += 0.05 * heart

    tree = vessels(int(c.tree), size, float(0.8 * c.zoom), (float(c.shift_x), float(c.shift_y)))
    density += 0.12 * c.vessel * tree * (0.2 + 0.8 * lung)
    density += 0.12 * c.vessel * ellipsoid(x, y, (0.04, -0.1), (0.13, 0.14))

    # Ribs of both sides, spine, sternum, trachea, breasts.
    cage = step(np.minimum(x - sternum + 0.03, posterior + 0.06 - x), 0.04) * step(v - 0.02, 0.1) * step(1.25 - v, 0.3)
    phase = (y + 0.42 * x + 0.25 * x * x) / c.rib_space + c.rib_phase
    density += 0.055 * c.bone * cage * step(0.17 - np.abs(phase - np.rint(phase)), 0.06)
    other = phase * 0.94 + 0.37
    density += 0.035 * c.bone * cage * step(0.15 - np.abs(other - np.rint(other)), 0.08)
    discs = np.abs(y / 0.115 - np.rint(y / 0.115))
    spine = step(0.085 - np.abs(x - spine_x), 0.04)
    density += c.bone * spine * (0.10 + 0.06 * step(discs - 0.12, 0.08)) * (1.1 - 0.3 * step(v - 0.3, 1.0))
    breastbone = step(0.022 - np.abs(x - sternum + 0.045), 0.02) * step(v - 0.1, 0.1) * step(0.75 - v, 0.2)
    density += 0.14 * c.bone * breastbone
    density -= 0.12 * step(0.036 - np.abs(x + 0.06 - 0.25 * (y + 0.6)), 0.03) * step(-0.3 - y, 0.2)
    radii = (0.1 + 0.16 * c.breast, 0.2 + 0.1 * c.breast)
    density += 0.24 * c.breast * ellipsoid(x, y, (front + 0.06, 0.12 + 0.1 * c.breast), radii)
    np.maximum(density, 0, out=density)
    return Scene(density, lung, tree, x, y, np.maximum(posterior, 0.2), diaphragm)
