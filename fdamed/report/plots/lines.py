"""Lines with bands: scores by round, over the values of an option, and against their cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from fdamed.core.run_record import Record
from fdamed.evaluation.intervals import Interval
from fdamed.evaluation.run_tables import hidden
from fdamed.report.plots.figure import (
    Axis,
    Scale,
    apart,
    around,
    color,
    dash,
    figure,
    linear,
    logarithmic,
    mark,
    number,
    rule,
    standalone,
    text,
)

MARKED = 6
"""About so many marks along a line."""
LONGEST = 20
"""Letters of a name beside a plot."""
LEFT, TOP = 52.0, 28.0


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
    def points(self) -> list[tuple[float, float | None, float | None, float | None]]:
        none: list[float | None] = [None] * len(self.x)
        return list(zip(self.x, self.mean, self.low or none, self.high or none, strict=True))

    @property
    def known(self) -> list[tuple[float, float]]:
        return [(x, mean) for x, mean, _, _ in self.points if mean is not None]


def value_range(lines: Sequence[Line], levels: Sequence[float] = (), share: bool = True) -> tuple[float, float]:
    """The range of the upright axis; `share`: the values lie within 0 and 1."""
    means = [*(m for line in lines for _, m in line.known), *levels]
    ends = [v for line in lines for v in (*line.low, *line.high) if v is not None]
    return around(means, ends) if share else (min(0.0, *means), 1.08 * max(means) or 1.0)


def axes(x: Axis, y: Axis, right: float, bottom: float) -> list[str]:
    """Grid, tick labels and axis names."""
    across, up = x.between(LEFT, right), y.between(bottom, TOP)
    out = [rule("grid", LEFT, up(value), right, up(value)) for value, _ in y.ticks]
    out += [text(LEFT - 8, up(value) + 4, label, anchor="end") for value, label in y.ticks]
    out += [text(across(value), bottom + 18, label) for value, label in x.ticks]
    out += [text((LEFT + right) / 2, bottom + 38, x.name, "axis"), text(LEFT - 40, TOP - 12, y.name, "axis", "start")]
    return out


def by_round(lines: Sequence[Line], title: str, name: str, share: bool = True) -> Markup:
    """Means by round with their bands; each line is a group that the legend switches."""
    lines = [line for line in lines if line.known]
    if not lines:
        return Markup("")
    low, high = value_range(lines, share=share)
    rounds = [r for line in lines for r in line.x]
    x, y = linear(min(rounds), max(rounds), "round", 8, whole=True), linear(low, high, name)
    body = axes(x, y, 548, 300)
    for line in lines:
        body.append(f'<g data-run="{line.index}"><title>{escape(line.name)}</title>')
        body += [*stroke(line, x.between(LEFT, 548), y.between(300, TOP), low, high), "</g>"]
    ends = sorted(((line.known[-1][1], line.name) for line in lines), reverse=True)
    told = "At the last round: " + "; ".join(f"{name} {end:.3g}" for end, name in ends) + "."
    return figure(560, 345, title, body, told=told)


def over_values(lines: Sequence[Line], levels: Mapping[str, float], title: str, x: Axis, name: str) -> Markup:
    """Means with bands over the values of an option; reference levels are dashed; names stand at the right."""
    lines = [line for line in lines if line.known]
    if not lines:
        return Markup("")
    low, high = value_range(lines, list(levels.values()))
    y = linear(low, high, name)
    right, bottom = 410.0, 300.0
    across = Axis(x.name, lambda v: 0.04 + 0.92 * x.place(v), x.ticks)
    to_x, to_y = across.between(LEFT, right), y.between(bottom, TOP)
    body = axes(across, y, right, bottom)
    body += [rule("grid", to_x(v), bottom, to_x(v), bottom + 5) for v, _ in x.ticks]
    body += [rule("reference", LEFT, to_y(level), right, to_y(level)) for level in levels.values()]
    names: list[tuple[float, str, int | None]] = [(to_y(level), run, None) for run, level in levels.items()]
    for line in lines:
        body.append(f"<g><title>{escape(line.name)}</title>{''.join(stroke(line, to_x, to_y, low, high, every=True))}")
        body.append("</g>")
        names.append((to_y(line.known[-1][1]), line.name, line.index))
    body += _aside(names, [(right, at) for at, _, _ in names], right + 19, bottom, 17.0, LONGEST)
    labels = dict(x.ticks)
    told = [f"{s.name}: " + ", ".join(f"{m:.3f} at {labels.get(v, number(v))}" for v, m in s.known) for s in lines]
    told += [f"{run}, not swept: {level:.3f}" for run, level in levels.items()]
    return figure(560, 345, title, body, told="; ".join(told) + ".")


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
    means = [mean for _, mean in known]
    ends = [v for p, _ in known for v in (p.score.low, p.score.high) if v is not None]
    low, high = around([*means, *(v for p, _ in known for _, v in p.trail)], ends)
    height = max(330.0, 70.0 + 15 * len(known))
    right, bottom = 520.0, height - 45
    scaled = logarithmic([cost for p, _ in known for cost, _ in p.trail], names[0])
    x, y = Axis(scaled.name, lambda v: 0.025 + 0.975 * scaled.place(v), scaled.ticks), linear(low, high, names[1])
    to_x, to_y = x.between(LEFT, right), y.between(bottom, TOP)
    body = axes(x, y, right, bottom)
    labels = apart([to_y(mean) for mean in means], TOP, bottom)
    told = []
    for (path, mean), level in zip(known, labels, strict=True):
        cost, paint = path.trail[-1][0], color(path.index)
        across, up, words = to_x(cost), to_y(mean), f"{number(float(f'{cost:.3g}'))} {unit}"
        told.append(f"{path.name} {mean:.3f} at {words}")
        body.append(f'<g data-run="{path.index}"><title>{escape(path.name)}: {words}</title>')
        if path.trail[0][0] < cost:
            points = " ".join(f"{to_x(c):.1f},{to_y(score):.1f}" for c, score in path.trail)
            body.append(
                f'<polyline class="line thin {paint}" stroke-dasharray="{dash(path.index)}" points="{points}"/>'
            )
        if path.score.low is not None and path.score.high is not None:
            body.append(
                rule(
                    "span", across, to_y(min(path.score.high, high)), across, to_y(max(path.score.low, low)), path.index
                )
            )
        body.append(f'<path class="leader {paint}" d="M{across + 7:.1f},{up:.1f}L{right + 11},{level:.1f}h10"/>')
        body += [mark(path.index, across, up, 5), text(right + 25, level + 4, path.name, "name", "start"), "</g>"]
    return figure(720, height, title, body, told="; ".join(told) + ".")


def _aside(
    names: Sequence[tuple[float, str, int | None]],
    ends: Sequence[tuple[float, float]],
    left: float,
    bottom: float,
    gap: float,
    longest: int,
) -> list[str]:
    """Names at the right, kept apart, each joined to the end of its line."""
    out = []
    heights = apart([at for at, _, _ in names], TOP, bottom, gap)
    for (_, name, index), (x, y), height in zip(names, ends, heights, strict=True):
        short = name if len(name) <= longest else name[: longest - 1] + "…"
        out.append(f'<path class="leader {color(index)}" d="M{x:.1f},{y:.1f}L{left - 9:.1f},{height:.1f}h4"/>')
        kind = "tick" if index is None else "name"
        label = f"{escape(short)}<title>{escape(name)}</title>"
        out.append(f'<text class="{kind}" x="{left}" y="{height + 4:.1f}">{label}</text>')
    return out


def stroke(line: Line, x: Scale, y: Scale, low: float, high: float, every: bool = False) -> list[str]:
    """Band, line and marks, cut off at low and high; `every`: a mark at each point."""
    out: list[str] = []
    for part in _pieces(line):
        top = [f"{x(v):.1f},{y(min(end, high)):.1f}" for v, _, _, end in part if end is not None]
        under = [f"{x(v):.1f},{y(max(end, low)):.1f}" for v, _, end, _ in part if end is not None]
        if len(top) > 1:
            out.append(f'<polygon class="band {color(line.index)}" points="{" ".join(top + under[::-1])}"/>')
        path = " ".join(f"{x(v):.1f},{y(mean):.1f}" for v, mean, _, _ in part)
        out.append(
            f'<polyline class="line {color(line.index)}" stroke-dasharray="{dash(line.index)}" points="{path}"/>'
        )
        # Marks count from the end, and each line starts a little further along, so that they do not hide each other.
        step = 1 if every else -(-len(part) // MARKED)
        first = (len(part) - 1 - line.index) % step if len(part) > 1 else 0
        out += [mark(line.index, x(v), y(mean), 3.2) for v, mean, _, _ in part[first::step]]
    return out


def _pieces(line: Line) -> list[list[tuple[float, float, float | None, float | None]]]:
    """The stretches of a line between undefined values."""
    out: list[list[tuple[float, float, float | None, float | None]]] = [[]]
    for x, mean, low, high in line.points:
        if mean is None:
            out.append([])
        else:
            out[-1].append((x, mean, low, high))
    return [piece for piece in out if piece]


def reliability(title: str, bins: Sequence[Mapping[str, float]], index: int) -> Markup:
    """A reliability diagram: share of positives against mean probability, marks sized by images."""
    unit = linear(0, 1, about=2)
    left, right, top, bottom = 34.0, 204.0, 8.0, 178.0
    x, y = unit.between(left, right), unit.between(bottom, top)
    body = [rule("reference", x(0), y(0), x(1), y(1))]
    for value, label in unit.ticks:
        body += [rule("grid", x(value), top, x(value), bottom), rule("grid", left, y(value), right, y(value))]
        body += [text(x(value), bottom + 16, label), text(left - 6, y(value) + 4, label, anchor="end")]
    path = " ".join(f"{x(b['chance']):.1f},{y(b['rate']):.1f}" for b in bins)
    body.append(f'<polyline class="line {color(index)}" points="{path}"/>')
    most = max(b["n"] for b in bins)
    for b in bins:
        told = f"mean probability {b['chance']:.2f}, share of positives {b['rate']:.2f}, {b['n']} images"
        place = f'cx="{x(b["chance"]):.1f}" cy="{y(b["rate"]):.1f}" r="{2 + 3 * (b["n"] / most) ** 0.5:.1f}"'
        body.append(f'<circle class="fill {color(index)}" {place}><title>{told}</title></circle>')
    return figure(214, 200, f"Calibration of {title}", body, "chart small")


def run_curve(record: Record, smallest: int) -> str:
    """One run's validation and test AUC by round, as a file for MLflow."""
    rounds = [int(row["round"]) for row in record.rounds]
    keys = ["val/auc"] if hidden(record, smallest) else ["val/auc", "test/auc"]
    lines = [Line(i, key, rounds, [row.get(key) for row in record.rounds]) for i, key in enumerate(keys)]
    plot = by_round(lines, f"{record.run}, target {record.target}, seed {record.seed}", "AUC: " + ", ".join(keys))
    return standalone(plot) if plot else '<svg xmlns="http://www.w3.org/2000/svg" />\n'
