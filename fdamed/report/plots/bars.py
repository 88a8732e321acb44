"""Stacked bars."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from fdamed.report.plots.figure import color, element, figure, linear, number, room, rule, text

ROW = 26.0


def bars(table: pd.DataFrame, title: str, unit: str) -> Markup:
    """One bar for each row of `table`, stacked by its columns."""
    totals = table.sum(axis=1)
    if table.empty or totals.max() <= 0:
        return Markup("")
    left = max(90.0, room([str(name) for name in table.index]))
    right, bottom = left + 470.0, 10 + ROW * len(table)
    axis = linear(0, float(totals.max()), unit)
    x = axis.between(left, right)
    body = []
    for value, label in axis.ticks:
        body += [rule("grid", x(value), 4, x(value), bottom), text(x(value), bottom + 16, label)]
    for i, (name, cells) in enumerate(table.iterrows()):
        y, begin = 10 + ROW * i, 0.0
        body.append(text(left - 10, y + 14, str(name), "name", "end"))
        for k, (kind, amount) in enumerate(cells.items()):
            if amount > 0:
                tip, width = f"{name}, {kind}: {amount:.4g} {unit}", max(0.5, x(begin + amount) - x(begin))
                body.append(element("rect", f"fill {color(k)}", title=tip, x=x(begin), y=y, width=width, height=18))
            begin += amount
        body.append(text(x(begin) + 6, y + 14, number(round(begin, 2)), anchor="start"))
    body.append(text((left + right) / 2, bottom + 34, unit, "axis"))
    words = "; ".join(f"{name} {total:.4g} {unit}" for name, total in totals.items()) + "."
    return figure(right + 70, bottom + 42, title, body, words=words)
