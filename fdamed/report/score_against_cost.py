"""Score against cost: a point a run, the way it went there, its name beside the plane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from fdamed.evaluation.intervals import Interval
from fdamed.report.svg import Scale, around, color, dash, drawing, frame, mark, number, scale, ticks

ASIDE = 545.0
"""Where the names begin."""
NOTHING = 40.0
"""How far left of the least amount a run stands that sent nothing: a logarithm has no place for it."""


@dataclass(frozen=True)
class Point:
    """A run in the plane of cost and score, and its way there: cost and score after each round."""

    index: int
    name: str
    score: Interval
    trail: Sequence[tuple[float, float]]

    @property
    def x(self) -> float:
        return self.trail[-1][0]


def plane(points: Sequence[Point], title: str, names: tuple[str, str], unit: str = "MB") -> Markup:
    """Score against cost on a logarithmic axis; names stand beside the plane and give way to each other."""
    known = [(p, p.score.mean) for p in points if p.score.mean is not None]
    if not known:
        return Markup("")
    means = [mean for _, mean in known]
    reach = [v for p, _ in known for v in (p.score.low, p.score.high) if v is not None]
    low, high = around([*means, *(v for p, _ in known for _, v in p.trail)], reach or means)
    height = max(330.0, 70.0 + 15 * len(known))
    box = (52.0, 520.0, 28.0, height - 45)
    costs = [mb for p, _ in known for mb, _ in p.trail]
    x, marks = logarithmic(costs, box[0] + 12, box[1])
    y = scale(low, high, box[3], box[2])
    body = frame(x, y, marks, ticks(low, high), box, names)
    if min(costs) <= 0:
        body.append(f'<text class="tick" x="{x(0):.1f}" y="{box[3] + 18}" text-anchor="middle">0</text>')
    labels = apart([(y(mean), i) for i, mean in enumerate(means)], box[2], box[3])
    for i, (point, mean) in enumerate(known):
        across, up, level = x(point.x), y(mean), labels[i]
        line = f'style="stroke:{color(point.index)}"'
        told = f"{point.name}: {number(float(f'{point.x:.3g}'))} {unit}"
        body.append(f'<g data-run="{point.index}"><title>{escape(told)}</title>')
        if point.trail[0][0] < point.x:  # who sends nothing goes no way
            way = " ".join(f"{x(mb):.1f},{y(score):.1f}" for mb, score in point.trail)
            body.append(f'<polyline class="trail" {line} stroke-dasharray="{dash(point.index)}" points="{way}"/>')
        if point.score.low is not None and point.score.high is not None:
            top, bottom = y(min(point.score.high, high)), y(max(point.score.low, low))
            body.append(f'<path class="span" {line} d="M{across:.1f},{top:.1f}V{bottom:.1f}"/>')
        body.append(f'<path class="leader" {line} d="M{across + 7:.1f},{up:.1f}L{ASIDE - 14},{level:.1f}h10"/>')
        body.append(mark(point.index, across, up, 5))
        body.append(f'<text class="name" x="{ASIDE}" y="{level + 4:.1f}">{escape(point.name)}</text></g>')
    ends = [f"{p.name} {mean:.3f} at {number(float(f'{p.x:.3g}'))} {unit}" for p, mean in known]
    return drawing(720, height, title, body, told="; ".join(ends) + ".")


def logarithmic(values: Sequence[float], begin: float, end: float) -> tuple[Scale, list[float]]:
    """Amounts to drawing units by their logarithm, and round amounts for ticks; nothing stands left of the least."""
    some = [v for v in values if v > 0] or [1.0]
    least, most = min(some), max(some)
    place = scale(math.log10(least), math.log10(most), begin + (NOTHING if min(values) <= 0 else 0), end)
    if most / least < 1.05:
        return (lambda v: place(0) if v > 0 else begin), [float(f"{most:.2g}")]
    steps = (1, 2, 5) if most / least < 300 else (1,)
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    marks = [f * 10.0**p for p in powers for f in steps]
    return (lambda v: place(math.log10(v)) if v > 0 else begin), [m for m in marks if least * 0.98 <= m <= most * 1.02]


def apart(places: list[tuple[float, int]], top: float, bottom: float, gap: float = 15.0) -> dict[int, float]:
    """Heights for labels, in the order of their points, at least `gap` apart and inside the box where they fit."""
    ordered = sorted(places)
    out: list[float] = []
    for wish, _ in ordered:
        out.append(max(wish, out[-1] + gap) if out else max(wish, top))
    over = out[-1] - bottom if out else 0.0
    if over > 0:
        out[-1] = max(bottom, top + gap * (len(out) - 1))
        for i in range(len(out) - 2, -1, -1):
            out[i] = min(out[i], out[i + 1] - gap)
    return {index: height for height, (_, index) in zip(out, ordered, strict=True)}
