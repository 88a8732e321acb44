"""Drawings inside the page, as plain SVG: they scale, print, follow light and dark, and toggle by run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from fdamed.core.run_record import Record
from fdamed.evaluation.intervals import Interval
from fdamed.evaluation.run_tables import hidden

COLORS = 8
"""Colors of the palette, --c0 ... --c7 in the stylesheet: Okabe and Ito, with olive for yellow, lost on white."""
MARKS = (
    "M-1,0a1,1 0 1,0 2,0a1,1 0 1,0 -2,0z",
    "M-.9-.9h1.8v1.8h-1.8z",
    "M0-1.2L1.1,.8H-1.1z",
    "M0-1.3L1.1,0 0,1.3-1.1,0z",
    "M0,1.2L-1.1-.8H1.1z",
    "M-.4-1.2h.8v.8h.8v.8h-.8v.8h-.8v-.8h-.8v-.8h.8z",
    "M-1.2-1.2l1.2,.6 1.2-.6-.6,1.2 .6,1.2-1.2-.6-1.2,.6 .6-1.2z",
    "M-.6-1.1h1.2l.6,1.1-.6,1.1h-1.2l-.6-1.1z",
)
"""A shape for each color, so that nobody has to tell colors apart: outlines around 0 with radius 1."""
MARKED = 6
"""Marks along a curve, about."""
DASHES = ("", "6 3", "2 3", "9 3 2 3", "12 4")
"""After the colors are used up, the next eight runs get the next dash."""

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Line:
    """A run's curve: rounds, means and, where several seeds are there, the band; None breaks the line."""

    index: int
    name: str
    x: Sequence[float]
    mean: Sequence[float | None]
    low: Sequence[float | None]
    high: Sequence[float | None]


def color(index: int) -> str:
    return f"var(--c{index % COLORS})"


def dash(index: int) -> str:
    return DASHES[index // COLORS % len(DASHES)]


def shape(index: int) -> int:
    """Which of the shapes a run has: another one when its color comes again."""
    return (index + index // COLORS) % len(MARKS)


def mark(index: int, x: float, y: float, size: float = 3.5) -> str:
    """The shape of a run at a place."""
    place = f'transform="translate({x:.1f},{y:.1f}) scale({size:g})"'
    return f'<path class="mark" style="fill:{color(index)}" {place} d="{MARKS[shape(index)]}"/>'


def key(index: int) -> Markup:
    """Line and shape of a run, for a legend."""
    line = f'<line x1="0" x2="30" y1="6" y2="6" style="stroke:{color(index)}" stroke-dasharray="{dash(index)}"/>'
    return Markup(f'<svg class="key" viewBox="0 0 30 12" aria-hidden="true">{line}{mark(index, 15, 6)}</svg>')  # noqa: S704 - numbers alone


def spot(index: int) -> Markup:
    """Shape of a run, for a line of a table."""
    return Markup(f'<svg class="spot" viewBox="0 0 12 12" aria-hidden="true">{mark(index, 6, 6, 4)}</svg>')  # noqa: S704 - numbers alone


def scale(low: float, high: float, begin: float, end: float) -> Scale:
    """Data to drawing units; a range of one value lies in the middle."""
    if high <= low:
        return lambda _: (begin + end) / 2
    return lambda value: begin + (value - low) / (high - low) * (end - begin)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between low and high, about so many."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    size: float = 10.0 ** math.floor(math.log10(raw))
    step = next(size * f for f in (1, 2, 2.5, 5, 10) if size * f >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def room(words: Sequence[str]) -> float:
    """Width of the longest of these names in a drawing, about, with a margin: what is written leftwards needs it."""
    return 16.0 + max(sum(9.0 if letter.isupper() else 6.6 for letter in word) for word in words)


def number(value: float) -> str:
    """A tick's label without needless zeros."""
    return f"{value:,.10g}"


def limits(values: Sequence[float], least: float = 0.1) -> tuple[float, float]:
    """A range around the values that is never narrower than `least`, within 0 and 1."""
    low, high = min(values), max(values)
    pad = max((high - low) * 0.05, (least - (high - low)) / 2)
    return max(0.0, low - pad), min(1.0, high + pad)


def around(means: Sequence[float], ends: Sequence[float], reach: float = 0.1) -> tuple[float, float]:
    """A range that holds the means; wide intervals are cut off rather than squeeze everything else flat."""
    return limits([*means, max(min(ends), min(means) - reach), min(max(ends), max(means) + reach)])


def drawing(
    width: float, height: float, title: str, body: Sequence[str], kind: str = "chart", told: str = ""
) -> Markup:
    """An SVG with its name and, for those who do not see it, `told`: what it shows, in words."""
    head = f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}">'
    words = f"<desc>{escape(told)}</desc>" if told else ""
    return Markup(head + words + "".join(body) + "</svg>")  # noqa: S704 - every text in `body` went through `escape`


def dot(score: Interval, index: int, low: float, high: float, chance: float | None = 0.5, width: int = 135) -> Markup:
    """A mean and its interval on the scale of the whole column."""
    if score.mean is None:
        return Markup("")
    x = scale(low, high, 6, width - 6)
    body = [f'<line class="rail" x1="0" x2="{width}" y1="10" y2="10"/>']
    if chance is not None and low < chance < high:
        body.append(f'<line class="chance" x1="{x(chance):.1f}" x2="{x(chance):.1f}" y1="0" y2="20"/>')
    if score.low is not None and score.high is not None:
        ends = x(max(low, score.low)), x(min(high, score.high))
        body.append(
            f'<line class="span" style="stroke:{color(index)}" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="10" y2="10"/>'
        )
    body.append(mark(index, x(score.mean), 10, 4.5))
    return drawing(width, 20, f"{score.mean:.3f}", body, "dot")


def frame(
    x: Scale,
    y: Scale,
    xs: Sequence[float],
    ys: Sequence[float],
    box: tuple[float, float, float, float],
    names: tuple[str, str],
) -> list[str]:
    """Grid, tick labels and axis names; box = left, right, top, bottom."""
    left, right, top, bottom = box
    out = []
    for value in ys:
        out.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        out.append(f'<text class="tick" x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{number(value)}</text>')
    for value in xs:
        out.append(
            f'<text class="tick" x="{x(value):.1f}" y="{bottom + 18}" text-anchor="middle">{number(value)}</text>'
        )
    out.append(
        f'<text class="axis" x="{(left + right) / 2}" y="{bottom + 38}" text-anchor="middle">{escape(names[0])}</text>'
    )
    out.append(f'<text class="axis" x="{left - 40}" y="{top - 12}">{escape(names[1])}</text>')
    return out


def curves(lines: Sequence[Line], title: str, name: str, share: bool = True) -> Markup:
    """Means by round with their bands; each run is a group that the legend switches. `share`: within 0 and 1."""
    means = [v for line in lines for v in line.mean if v is not None]
    ends = [v for line in lines for part in (line.low, line.high) for v in part if v is not None]
    rounds = [r for line in lines for r in line.x]
    if not means or not rounds:
        return Markup("")
    low, high = around(means, ends or means) if share else (min(0.0, *means), 1.08 * max(means) or 1.0)
    box = (52.0, 548.0, 28.0, 300.0)
    x = scale(min(rounds), max(rounds), box[0], box[1])
    y = scale(low, high, box[3], box[2])
    whole = [t for t in ticks(min(rounds), max(rounds), 8) if t == int(t)] or [min(rounds)]
    body = frame(x, y, whole, ticks(low, high), box, ("round", name))
    for line in lines:
        body.append(f'<g data-run="{line.index}"><title>{escape(line.name)}</title>')
        body += stroke(line, x, y, low, high)
        body.append("</g>")
    return drawing(560, 345, title, body, told=_ends(lines))


def _ends(lines: Sequence[Line]) -> str:
    """Where each curve ends, highest first."""
    known = [(line.name, [m for m in line.mean if m is not None]) for line in lines]
    ends = sorted(((means[-1], name) for name, means in known if means), reverse=True)
    return "At the last round: " + "; ".join(f"{name} {end:.3g}" for end, name in ends) + "."


def stroke(line: Line, x: Scale, y: Scale, low: float, high: float) -> list[str]:
    """Band and line of a curve, cut off at low and high."""
    out = []
    for part in _pieces(line):
        top = [f"{x(r):.1f},{y(min(h, high)):.1f}" for r, _, _, h in part if h is not None]
        under = [f"{x(r):.1f},{y(max(w, low)):.1f}" for r, _, w, _ in part if w is not None]
        if len(top) > 1:
            points = " ".join(top + under[::-1])
            out.append(f'<polygon class="band" style="fill:{color(line.index)}" points="{points}"/>')
        path = " ".join(f"{x(r):.1f},{y(m):.1f}" for r, m, _, _ in part)
        shape = f'style="stroke:{color(line.index)}" stroke-dasharray="{dash(line.index)}"'
        out.append(f'<polyline class="line" {shape} points="{path}"/>')
        # From the end, which is what counts; each run a little further along, so that shapes do not hide each other.
        every = max(1, round(len(part) / MARKED))
        first = (len(part) - 1 - line.index) % every if len(part) > 1 else 0
        out += [mark(line.index, x(r), y(m), 3.2) for r, m, _, _ in part[first::every]]
    return out


def _pieces(line: Line) -> list[list[tuple[float, float, float | None, float | None]]]:
    """The stretches of a curve between undefined rounds."""
    out: list[list[tuple[float, float, float | None, float | None]]] = [[]]
    for r, m, low, high in zip(line.x, line.mean, line.low, line.high, strict=True):
        if m is None:
            out.append([])
        else:
            out[-1].append((r, m, low, high))
    return [piece for piece in out if piece]


def run_curve(record: Record, smallest: int) -> str:
    """One run's validation and test AUC by round, as a file of its own for MLflow."""
    rounds = [int(row["round"]) for row in record.rounds]
    none: list[float | None] = [None] * len(rounds)
    keys = ["val/auc"] if hidden(record, smallest) else ["val/auc", "test/auc"]
    lines = [Line(i, key, rounds, [row.get(key) for row in record.rounds], none, none) for i, key in enumerate(keys)]
    picture = curves(lines, f"{record.run}, target {record.target}, seed {record.seed}", "AUC: " + ", ".join(keys))
    style = (
        "<style>:root{--c0:#0072b2;--c1:#d55e00}text{font:12px sans-serif;fill:#444}.grid{stroke:#ddd}"
        ".line{fill:none;stroke-width:2}</style>"
    )
    head = '<svg xmlns="http://www.w3.org/2000/svg" '
    return (str(picture).replace("<svg ", head, 1).replace(">", ">" + style, 1) if picture else f"{head}/>") + "\n"
