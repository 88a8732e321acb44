"""Lines with bands: scores by round, over the values of an option, against their cost; reliability diagrams."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from fdamed.evaluation.intervals import Interval
from fdamed.report.plots.figure import (
    Axis,
    Scale,
    apart,
    around,
    color,
    dash,
    element,
    figure,
    linear,
    logarithmic,
    mark,
    number,
    polyline,
    rule,
    text,
)

MARKED = 6
"""About so many marks along a line."""
CLEAR = 3
"""Of more lines, the bands hide each other: they are shown one at a time."""
LONGEST = 20
"""Letters of a name beside a plot."""
LEFT, TOP = 52.0, 28.0
Point = tuple[float, float, float | None, float | None]
"""x, mean and, where there is one, the interval."""


@dataclass(frozen=True)
class Line:
    """A line: x, means and, where there are several seeds, the band; None breaks the line."""

    index: int
    name: str
    x: Sequence[float]
    mean: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()

    @property
    def pieces(self) -> list[list[Point]]:
        """The stretches of the line between undefined values."""
        points: Any = itertools.zip_longest(self.x, self.mean, self.low, self.high)
        stretches = itertools.groupby(points, lambda point: point[1] is not None)
        return [list(stretch) for known, stretch in stretches if known]

    @property
    def known(self) -> list[Point]:
        return list(itertools.chain.from_iterable(self.pieces))


def value_range(lines: Sequence[Line], levels: Sequence[float] = (), share: bool = True) -> tuple[float, float]:
    """The range of the upright axis; `share`: the values lie within 0 and 1."""
    means = [*(mean for line in lines for _, mean, _, _ in line.known), *levels]
    ends = [v for line in lines for v in (*line.low, *line.high) if v is not None]
    return around(means, ends) if share else (min(0.0, *means), 1.08 * max(means) or 1.0)


def frame(x: Axis, y: Axis, right: float, bottom: float) -> tuple[list[str], Scale, Scale]:
    """Grid, tick labels and axis names, and the scales of both axes."""
    across, up = x.between(LEFT, right), y.between(bottom, TOP)
    out = [rule("grid", LEFT, up(value), right, up(value)) for value, _ in y.ticks]
    out += [text(LEFT - 8, up(value) + 4, label, anchor="end") for value, label in y.ticks]
    out += [text(across(value), bottom + 18, label) for value, label in x.ticks]
    out += [text((LEFT + right) / 2, bottom + 38, x.name, "axis"), text(LEFT - 40, TOP - 12, y.name, "axis", "start")]
    return out, across, up


def by_round(lines: Sequence[Line], title: str, name: str, share: bool = True) -> Markup:
    """Means by round with their bands; each line is a group that the legend switches."""
    lines = [line for line in lines if line.known]
    if not lines:
        return Markup("")
    low, high = value_range(lines, share=share)
    rounds = [r for line in lines for r in line.x]
    axis = linear(min(rounds), max(rounds), "round", 8, whole=True)
    body, x, y = frame(axis, linear(low, high, name), 548, 300)
    kind = "quiet" if len(lines) > CLEAR else ""
    for line in lines:
        body.append(element("g", kind, *stroke(line, x, y, low, high), title=line.name, data_run=str(line.index)))
    ends = sorted(((line.known[-1][1], line.name) for line in lines), reverse=True)
    words = "At the last round: " + "; ".join(f"{name} {end:.3g}" for end, name in ends) + "."
    return figure(560, 345, title, body, words=words)


def over_values(lines: Sequence[Line], levels: Mapping[str, float], title: str, axis: Axis, name: str) -> Markup:
    """Means with bands over the values of an option; reference levels are dashed; names are at the right."""
    lines = [line for line in lines if line.known]
    if not lines:
        return Markup("")
    low, high = value_range(lines, list(levels.values()))
    right, bottom = 410.0, 300.0
    inside = Axis(axis.name, lambda v: 0.04 + 0.92 * axis.place(v), axis.ticks)
    body, x, y = frame(inside, linear(low, high, name), right, bottom)
    body += [rule("grid", x(v), bottom, x(v), bottom + 5) for v, _ in axis.ticks]
    body += [rule("reference", LEFT, y(level), right, y(level)) for level in levels.values()]
    body += [element("g", "", *stroke(line, x, y, low, high, every=True), title=line.name) for line in lines]
    names: list[tuple[float, str, int | None]] = [(y(level), run, None) for run, level in levels.items()]
    names += [(y(line.known[-1][1]), line.name, line.index) for line in lines]
    heights = apart([end for end, _, _ in names], TOP, bottom, 17.0)
    for (end, run, index), height in zip(names, heights, strict=True):
        body += _label(run, index, (right, end), right + 19, height)
    ticks = dict(axis.ticks)
    words = [
        f"{line.name}: " + ", ".join(f"{m:.3f} at {ticks.get(v, number(v))}" for v, m, _, _ in line.known)
        for line in lines
    ]
    words += [f"{run}, not swept: {level:.3f}" for run, level in levels.items()]
    return figure(560, 345, title, body, words="; ".join(words) + ".")


@dataclass(frozen=True)
class Path:
    """A run on the plane of cost and score: cost and score after each round, and the final score."""

    index: int
    name: str
    score: Interval
    trail: Sequence[tuple[float, float]]


def against_cost(paths: Sequence[Path], title: str, names: tuple[str, str], unit: str = "MB") -> Markup:
    """Final scores with intervals against a logarithmic cost, each with its thin line round by round."""
    known = [(p, p.score.mean) for p in paths if p.score.mean is not None]
    if not known:
        return Markup("")
    ends = [v for p, _ in known for v in (p.score.low, p.score.high) if v is not None]
    low, high = around([*(mean for _, mean in known), *(v for p, _ in known for _, v in p.trail)], ends)
    height = max(330.0, 70.0 + 15 * len(known))
    right, bottom = 520.0, height - 45
    scaled = logarithmic([cost for p, _ in known for cost, _ in p.trail], names[0])
    inside = Axis(scaled.name, lambda v: 0.025 + 0.975 * scaled.place(v), scaled.ticks)
    body, x, y = frame(inside, linear(low, high, names[1]), right, bottom)
    words = []
    for (path, mean), level in zip(known, apart([y(mean) for _, mean in known], TOP, bottom), strict=True):
        cost = path.trail[-1][0]
        amount = f"{number(float(f'{cost:.3g}'))} {unit}"
        words.append(f"{path.name} {mean:.3f} at {amount}")
        parts = []
        if len(path.trail) > 2 and path.trail[0][0] < cost:
            trail = [(x(c), y(score)) for c, score in path.trail]
            parts.append(polyline(f"line thin {color(path.index)}", trail, dash(path.index)))
        if path.score.low is not None and path.score.high is not None:
            ends_at = y(min(path.score.high, high)), y(max(path.score.low, low))
            parts.append(rule("span", x(cost), ends_at[0], x(cost), ends_at[1], path.index))
        parts += _label(path.name, path.index, (x(cost) + 7, y(mean)), right + 25, level, 30)
        parts.append(mark(path.index, x(cost), y(mean), 5))
        body.append(element("g", "", *parts, title=f"{path.name}: {amount}", data_run=str(path.index)))
    return figure(720, height, title, body, words="; ".join(words) + ".")


def _label(
    name: str, index: int | None, end: tuple[float, float], left: float, height: float, longest: int = LONGEST
) -> list[str]:
    """The name of a line at the right, joined to the line's end."""
    short = name if len(name) <= longest else name[: longest - 1] + "…"
    leader = f"M{end[0]:.1f},{end[1]:.1f}L{left - 9:.1f},{height:.1f}h4"
    kind = "tick" if index is None else "name"
    return [
        element("path", f"leader {color(index)}", d=leader),
        text(left, height + 4, short, kind, "start", name if short != name else ""),
    ]


def stroke(line: Line, x: Scale, y: Scale, low: float, high: float, every: bool = False) -> list[str]:
    """Band, line and marks, cut off at low and high; `every`: a mark at each point."""
    out: list[str] = []
    for piece in line.pieces:
        top = [f"{x(v):.1f},{y(min(end, high)):.1f}" for v, _, _, end in piece if end is not None]
        under = [f"{x(v):.1f},{y(max(end, low)):.1f}" for v, _, end, _ in piece if end is not None]
        if len(top) > 1:
            out.append(element("polygon", f"band {color(line.index)}", points=" ".join(top + under[::-1])))
        points = [(x(v), y(mean)) for v, mean, _, _ in piece]
        out.append(polyline(f"line {color(line.index)}", points, dash(line.index)))
        # Marks count from the end, and each line starts a little further along, so that they do not hide each other.
        step = 1 if every else -(-len(points) // MARKED)
        first = (len(points) - 1 - line.index) % step
        out += [mark(line.index, *point, 3.2) for point in points[first::step]]
    return out


def reliability(title: str, bins: Sequence[Mapping[str, float]], index: int) -> Markup:
    """A reliability diagram: share of positives with its band against mean probability, marks sized by images."""
    unit = linear(0, 1, about=2)
    left, right, top, bottom = 34.0, 204.0, 8.0, 178.0
    x, y = unit.between(left, right), unit.between(bottom, top)
    body = [rule("reference", x(0), y(0), x(1), y(1))]
    for value, label in unit.ticks:
        body += [rule("grid", x(value), top, x(value), bottom), rule("grid", left, y(value), right, y(value))]
        body += [text(x(value), bottom + 16, label), text(left - 6, y(value) + 4, label, anchor="end")]
    if all("low" in b for b in bins):
        edge = [*((b["probability"], b["high"]) for b in bins), *((b["probability"], b["low"]) for b in reversed(bins))]
        points = " ".join(f"{x(p):.1f},{y(rate):.1f}" for p, rate in edge)
        body.append(element("polygon", f"shade {color(index)}", points=points))
    body.append(polyline(f"line {color(index)}", [(x(b["probability"]), y(b["rate"])) for b in bins]))
    most = max(b["n"] for b in bins)
    for b in bins:
        tip = f"mean probability {b['probability']:.2f}, share of positives {b['rate']:.2f}, {b['n']} images"
        size = 2 + 3 * (b["n"] / most) ** 0.5
        body.append(
            element("circle", f"fill {color(index)}", title=tip, cx=x(b["probability"]), cy=y(b["rate"]), r=size),
        )
    return figure(214, 200, f"Calibration of {title}", body, "chart small")
