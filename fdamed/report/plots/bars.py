"""Stacked bars."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup, escape

from fdamed.report.plots.figure import color, figure, linear, number, room, rule, text

ROW = 26.0


def bars(table: pd.DataFrame, title: str, unit: str) -> Markup:
    """One bar for each row of `table`, stacked by its columns."""
    totals = table.sum(axis=1)
    most = float(totals.max()) if len(table) else 0.0
    if most <= 0:
        return Markup("")
    left = max(90.0, room([str(name) for name in table.index]))
    right, bottom = left + 470.0, 10 + ROW * len(table)
    axis = linear(0, most, unit)
    x = axis.between(left, right)
    body = []
    for value, label in axis.ticks:
        body += [rule("grid", x(value), 4, x(value), bottom), text(x(value), bottom + 16, label)]
    for i, (name, cells) in enumerate(table.iterrows()):
        y, begin = 10 + ROW * i, 0.0
        body.append(text(left - 10, y + 14, str(name), "name", "end"))
        for k, (kind, amount) in enumerate(cells.items()):
            size = float(amount)
            if size > 0:
                place = f'x="{x(begin):.1f}" y="{y}" width="{max(0.5, x(begin + size) - x(begin)):.1f}" height="18"'
                tip = escape(f"{name}, {kind}: {size:.4g} {unit}")
                body.append(f'<rect class="fill {color(k)}" {place}><title>{tip}</title></rect>')
            begin += size
        body.append(text(x(begin) + 6, y + 14, number(round(begin, 2)), anchor="start"))
    body.append(text((left + right) / 2, bottom + 34, unit, "axis"))
    told = "; ".join(f"{name} {total:.4g} {unit}" for name, total in totals.items()) + "."
    return figure(right + 70, bottom + 42, title, body, told=told)
