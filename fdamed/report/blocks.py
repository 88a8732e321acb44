"""Bars of bytes, dots of gains and heat maps of cosines, as SVG for the page."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from markupsafe import Markup, escape

from fdamed.evaluation.intervals import Interval
from fdamed.report.svg import color, drawing, number, room, scale, ticks

ROUNDS = 20
LAYERS = 24
"""Cells of a heat map at most; more rounds or layers are averaged together."""


def bars(table: pd.DataFrame, kinds: Sequence[str]) -> Markup:
    """One bar a run (rows of `table`), stacked by kind (columns): MB a round."""
    most = float(table.sum(axis=1).max()) if len(table) else 0.0
    if most <= 0:
        return Markup("")
    left, right, row = 170.0, 640.0, 26.0
    bottom = 10 + row * len(table)
    x = scale(0, most, left, right)
    body = []
    for value in ticks(0, most):
        body.append(f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="4" y2="{bottom}"/>')
        body.append(
            f'<text class="tick" x="{x(value):.1f}" y="{bottom + 16}" text-anchor="middle">{number(value)}</text>'
        )
    for i, (name, cells) in enumerate(table.iterrows()):
        y, begin = 10 + row * i, 0.0
        body.append(f'<text class="name" x="{left - 10}" y="{y + 14}" text-anchor="end">{escape(str(name))}</text>')
        for kind in kinds:
            size = float(cells[kind])
            if size > 0:
                wide = max(0.5, x(begin + size) - x(begin))
                body.append(
                    f'<rect class="kind-{kinds.index(kind)}" x="{x(begin):.1f}" y="{y}" width="{wide:.1f}" height="18">'
                    f"<title>{escape(str(name))}, {escape(kind)}: {size:.4g} MB a round</title></rect>"
                )
            begin += size
        body.append(f'<text class="tick" x="{x(begin) + 6:.1f}" y="{y + 14}">{number(round(begin, 2))}</text>')
    body.append(f'<text class="axis" x="{(left + right) / 2}" y="{bottom + 34}" text-anchor="middle">MB a round</text>')
    told = "; ".join(f"{name} {total:.4g} MB a round" for name, total in table.sum(axis=1).items()) + "."
    return drawing(720, bottom + 42, "Megabytes a round that left the hospitals, by run and kind", body, told=told)


def gains(rows: Sequence[tuple[str, Interval]], title: str, name: str) -> Markup:
    """A dot and an interval a row around the line of no gain."""
    known = [(label, s, s.mean) for label, s in rows if s.mean is not None]
    if not known:
        return Markup("")
    ends = [v for _, s, m in known for v in (m, s.low, s.high) if v is not None]
    low, high = min(0.0, *ends), max(0.0, *ends)
    pad = max(0.005, 0.05 * (high - low))
    low, high = low - pad, high + pad
    left, right, row = 190.0, 640.0, 28.0
    bottom = 8 + row * len(known)
    x = scale(low, high, left, right)
    body = []
    for value in ticks(low, high):
        body.append(f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="4" y2="{bottom}"/>')
        label = f"{value:+.3g}" if value else "0"
        body.append(f'<text class="tick" x="{x(value):.1f}" y="{bottom + 16}" text-anchor="middle">{label}</text>')
    body.append(f'<line class="zero" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="2" y2="{bottom}"/>')
    for i, (label, score, mean) in enumerate(known):
        y = 8 + row * i + row / 2
        body.append(f'<text class="name" x="{left - 12}" y="{y + 4}" text-anchor="end">{escape(label)}</text>')
        if score.low is not None and score.high is not None:
            ends_x = f'x1="{x(score.low):.1f}" x2="{x(score.high):.1f}"'
            body.append(f'<line class="span" style="stroke:{color(0)}" {ends_x} y1="{y}" y2="{y}"/>')
        body.append(
            f'<circle style="fill:{color(0)}" cx="{x(mean):.1f}" cy="{y}" r="5">'
            f"<title>{escape(label)}: {mean:+.3f}</title></circle>"
        )
    body.append(
        f'<text class="axis" x="{(left + right) / 2}" y="{bottom + 36}" text-anchor="middle">{escape(name)}</text>'
    )
    told = "; ".join(f"{label} {mean:+.3f}" for label, _, mean in known) + "."
    return drawing(680, bottom + 44, title, body, told=told)


def _layers(members: Sequence[str]) -> str:
    """Layers that share a row, by their first."""
    first = members[0].removeprefix("trunk.").removesuffix(".weight")
    return first if len(members) == 1 else f"{first} … +{len(members) - 1}"


def heat(frame: pd.DataFrame, title: str) -> Markup:
    """One panel a source: layers downwards, rounds to the right, the cosine as color."""
    sources, order = list(dict.fromkeys(frame["source"])), list(dict.fromkeys(frame["layer"]))
    rounds = sorted(frame["round"].unique())
    size = -(-len(order) // LAYERS)
    group = {layer: i // size for i, layer in enumerate(order)}
    width = -(-len(rounds) // ROUNDS)
    column = {r: i // width for i, r in enumerate(rounds)}
    cells = frame.assign(row=frame["layer"].map(group), column=frame["round"].map(column))
    means = cells.groupby(["source", "row", "column"])["cos"].mean()
    rows, columns = -(-len(order) // size), -(-len(rounds) // width)
    names = [_layers(order[i * size : (i + 1) * size]) for i in range(rows)]
    left, high, gap = room(names), 13.0, 14.0
    panel = max(90.0, min(150.0, 560.0 / len(sources) - gap))
    wide = panel / columns
    body = []
    for i, name in enumerate(names):
        body.append(
            f'<text class="tick" x="{left - 8}" y="{24 + high * i + 10}" text-anchor="end">{escape(name)}</text>'
        )
    for s, source in enumerate(sources):
        begin = left + s * (panel + gap)
        body.append(f'<text class="name" x="{begin}" y="14">{escape(str(source))}</text>')
        for i in range(rows):
            for j in range(columns):
                value = means.get((source, i, j))
                if value is None or value != value:
                    continue
                sign = "plus" if value >= 0 else "minus"
                body.append(
                    f'<rect class="{sign}" x="{begin + j * wide:.1f}" y="{24 + i * high:.0f}" width="{wide:.2f}" '
                    f'height="{high - 1:.0f}" fill-opacity="{min(1.0, abs(float(value))):.2f}">'
                    f"<title>{value:.2f}</title></rect>"
                )
        foot = 24 + rows * high + 14
        body.append(f'<text class="tick" x="{begin}" y="{foot:.0f}">{rounds[0]}</text>')
        body.append(f'<text class="tick" x="{begin + panel}" y="{foot:.0f}" text-anchor="end">{rounds[-1]}</text>')
    overall = frame.groupby("source", sort=False)["cos"].mean()
    told = "Mean cosine: " + "; ".join(f"{source} {value:.2f}" for source, value in overall.items()) + "."
    name = f"Cosines by layer and round: {title}"
    return drawing(left + len(sources) * (panel + gap), 24 + rows * high + 24, name, body, "chart heat", told)
