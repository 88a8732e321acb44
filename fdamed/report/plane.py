"""Score against cost: a point a run, its name beside the plane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from fdamed.evaluate.intervals import Interval
from fdamed.report.svg import around, colour, drawing, frame, number, scale, ticks


@dataclass(frozen=True)
class Point:
    """A run in the plane of cost and score."""

    index: int
    name: str
    x: float
    score: Interval


def plane(points: Sequence[Point], title: str, names: tuple[str, str]) -> Markup:
    """Score against cost; names stand beside the plane and give way to each other."""
    known = [(p, p.score.mean) for p in points if p.score.mean is not None]
    if not known:
        return Markup("")
    means = [mean for _, mean in known]
    ends = [v for p, _ in known for v in (p.score.low, p.score.high) if v is not None]
    low, high = around(means, ends or means)
    most = max(p.x for p, _ in known) or 1.0
    height = max(330.0, 70.0 + 15 * len(known))
    box = (52.0, 520.0, 28.0, height - 45)
    x, y = scale(0, most, box[0] + 12, box[1]), scale(low, high, box[3], box[2])
    body = frame(x, y, ticks(0, most), ticks(low, high), box, names)
    labels = apart([(y(mean), i) for i, mean in enumerate(means)], box[2], box[3])
    aside = 545.0
    for i, (point, mean) in enumerate(known):
        across, up, level = x(point.x), y(mean), labels[i]
        line = f'style="stroke:{colour(point.index)}"'
        body.append(f'<g data-run="{point.index}"><title>{escape(point.name)}: {number(round(point.x, 2))} MB</title>')
        if point.score.low is not None and point.score.high is not None:
            top, bottom = y(min(point.score.high, high)), y(max(point.score.low, low))
            body.append(f'<path class="span" {line} d="M{across:.1f},{top:.1f}V{bottom:.1f}"/>')
        body.append(f'<path class="leader" {line} d="M{across + 7:.1f},{up:.1f}L{aside - 14},{level:.1f}h10"/>')
        body.append(f'<circle style="fill:{colour(point.index)}" cx="{across:.1f}" cy="{up:.1f}" r="5"/>')
        body.append(f'<text class="name" x="{aside}" y="{level + 4:.1f}">{escape(point.name)}</text></g>')
    return drawing(720, height, title, body)


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
