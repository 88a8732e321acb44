"""What every plot is made of: colors, marks, axes, and an SVG that is on the page or in a file of its own.

A plot has no style attributes: its classes are colored by `plots.css`, which the page and each figure file include.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markupsafe import Markup, escape

COLORS = 8
"""Colors of the palette, classes c0 ... c7: Okabe and Ito, with olive for yellow, which is lost on white."""
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
"""One shape for each color, so that nobody depends on color alone: outlines around 0 with radius 1."""
DASHES = ("", "6 3", "2 3", "9 3 2 3", "12 4")
"""When the colors are used up, the next eight runs get the next dash."""
ZERO_GAP = 0.09
"""Share of a logarithmic axis between the smallest positive value and zero, which has no logarithm."""

Scale = Callable[[float], float]


def color(index: int | None) -> str:
    """The color class of a run; without a run, the muted one."""
    return "muted" if index is None else f"c{index % COLORS}"


def dash(index: int) -> str:
    return DASHES[index // COLORS % len(DASHES)]


def shape(index: int) -> int:
    """The shape of a run: a different one when its color repeats."""
    return (index + index // COLORS) % len(MARKS)


def element(tag: str, kind: str, *content: str, title: str = "", **attributes: float | str) -> str:
    """An SVG element with its classes, attributes (`fill_opacity` is fill-opacity), tooltip and escaped content."""
    values = {"class": kind, **attributes} if kind else attributes
    texts = {k.replace("_", "-"): v if isinstance(v, str) else f"{v:.1f}" for k, v in values.items()}
    tip = f"<title>{escape(title)}</title>" if title else ""
    return "".join([f"<{tag}", *(f' {k}="{escape(v)}"' for k, v in texts.items()), f">{tip}", *content, f"</{tag}>"])


def mark(index: int | None, x: float, y: float, size: float = 3.5, title: str = "") -> str:
    """The shape of a run at a point."""
    place = f"translate({x:.1f},{y:.1f}) scale({size:g})"
    return element("path", f"mark {color(index)}", title=title, transform=place, d=MARKS[shape(index or 0)])


def text(x: float, y: float, content: str, kind: str = "tick", anchor: str = "middle", title: str = "") -> str:
    return element("text", kind, str(escape(content)), title=title, x=x, y=y, text_anchor=anchor)


def rule(kind: str, x1: float, y1: float, x2: float, y2: float, index: int | None = None) -> str:
    """A straight line of a class: grid, reference, zero or span."""
    return element("line", kind if index is None else f"{kind} {color(index)}", x1=x1, y1=y1, x2=x2, y2=y2)


def polyline(kind: str, points: Iterable[tuple[float, float]], dashes: str = "") -> str:
    style = {"stroke_dasharray": dashes} if dashes else {}
    return element("polyline", kind, points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), **style)


def key(index: int) -> Markup:
    """Line and shape of a run, for a legend."""
    line = element("line", f"line {color(index)}", x1=0, y1=6, x2=30, y2=6, stroke_dasharray=dash(index))
    return Markup(f'<svg class="key" viewBox="0 0 30 12" aria-hidden="true">{line}{mark(index, 15, 6)}</svg>')  # noqa: S704 - only numbers


def spot(index: int) -> Markup:
    """Shape of a run, for a table row."""
    return Markup(f'<svg class="spot" viewBox="0 0 12 12" aria-hidden="true">{mark(index, 6, 6, 4)}</svg>')  # noqa: S704 - only numbers


def number(value: float) -> str:
    """A tick label without needless zeros."""
    return f"{value:,.10g}"


def signed(value: float) -> str:
    return f"{value:+.3g}" if value else "0"


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """About so many round numbers between low and high."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    size: float = 10.0 ** math.floor(math.log10(raw))
    step = next(size * f for f in (1, 2, 2.5, 5, 10) if size * f >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def limits(values: Sequence[float], least: float = 0.1) -> tuple[float, float]:
    """A range around the values, never narrower than `least`, within 0 and 1."""
    low, high = min(values), max(values)
    pad = max((high - low) * 0.05, (least - (high - low)) / 2)
    return max(0.0, low - pad), min(1.0, high + pad)


def around(means: Sequence[float], ends: Sequence[float], reach: float = 0.1) -> tuple[float, float]:
    """A range that holds the means; wide intervals are cut off instead of flattening everything else."""
    known = ends or means
    return limits([*means, max(min(known), min(means) - reach), min(max(known), max(means) + reach)])


@dataclass(frozen=True)
class Axis:
    """Data to shares of the axis (0 at its start, 1 at its end), and the labeled ticks."""

    name: str
    place: Scale
    ticks: Sequence[tuple[float, str]]

    def between(self, start: float, end: float) -> Scale:
        """Data to coordinates."""
        return lambda value: start + self.place(value) * (end - start)


def linear(
    low: float, high: float, name: str = "", about: int = 5, label: Callable[[float], str] = number, whole: bool = False
) -> Axis:
    """A linear axis; a range of one value lies in the middle. `whole`: ticks at whole numbers only."""
    wide = high - low
    marks = [t for t in ticks(low, high, about) if not whole or t == int(t)] or [low]
    return Axis(name, lambda v: (v - low) / wide if wide > 0 else 0.5, [(t, label(t)) for t in marks])


def logarithmic(values: Sequence[float], name: str = "") -> Axis:
    """A logarithmic axis with ticks at 1, 2 and 5, or at decades; zero is put before the smallest positive value."""
    positive = [v for v in values if v > 0] or [1.0]
    low, high = math.log10(min(positive)), math.log10(max(positive))
    wide, start = high - low, ZERO_GAP if min(values) <= 0 else 0.0
    powers = range(math.floor(low), math.ceil(high) + 1)
    marks = [step * 10.0**p for p in powers for step in ((1, 2, 5) if wide < 2.5 else (1,))]
    marks = [m for m in marks if low - 0.01 <= math.log10(m) <= high + 0.01]
    if wide < 0.02:
        marks = [float(f"{max(positive):.2g}")]

    def place(value: float) -> float:
        share = (math.log10(value) - low) / wide if value > 0 and wide >= 0.02 else 0.5
        return start + (1 - start) * share if value > 0 else 0.0

    zero = [(0.0, "0")] if start else []
    return Axis(name, place, [*zero, *((m, number(m)) for m in marks)])


def room(names: Sequence[str]) -> float:
    """About the width of the longest of these names, with a margin."""
    return 16.0 + max(sum(9.0 if letter.isupper() else 6.6 for letter in name) for name in names)


def apart(places: Sequence[float], top: float, bottom: float, gap: float = 15.0) -> list[float]:
    """Heights for labels near `places`, at least `gap` apart, and inside the box where they fit."""
    order = sorted(range(len(places)), key=lambda i: (places[i], i))
    out: list[float] = []
    for i in order:
        out.append(max(places[i], out[-1] + gap) if out else max(places[i], top))
    if out and out[-1] > bottom:
        out[-1] = max(bottom, top + gap * (len(out) - 1))
        for i in range(len(out) - 2, -1, -1):
            out[i] = min(out[i], out[i + 1] - gap)
    return [height for _, height in sorted(zip(order, out, strict=True))]


def figure(
    width: float, height: float, title: str, body: Sequence[str], kind: str = "chart", words: str = ""
) -> Markup:
    """An SVG with its title and, for screen readers, a description in words."""
    head = f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}">'
    description = f"<desc>{escape(words)}</desc>" if words else ""
    return Markup(head + description + "".join(body) + "</svg>")  # noqa: S704 - every text in `body` went through `escape`


def standalone(plot: Markup) -> str:
    """A plot as a file: light colors written out, on white, readable by programs that know no CSS variables."""
    head, body = str(plot).split(">", 1)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', head)
    wide = f' width="{size[1]}" height="{size[2]}"' if size else ""
    start = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return f'{start}{wide}><style>{_light()}</style><rect width="100%" height="100%" fill="#fff"/>{body}\n'


def stylesheet() -> str:
    return (Path(__file__).parent / "plots.css").read_text(encoding="utf-8")


@cache
def _light() -> str:
    """The stylesheet with the light value of every variable in its place."""
    css = re.sub(r"light-dark\(([^,]+), [^)]+\)", r"\1", re.sub(r"/\*.*?\*/", "", stylesheet()))
    values = dict(re.findall(r"(--[\w-]+): ([^;]+);", css))
    css = re.sub(r"var\((--[\w-]+)\)", lambda found: values[found[1]], css)
    return re.sub(r"\s+", " ", re.sub(r":root[^{]*\{[^}]*\}", "", css)).strip()
