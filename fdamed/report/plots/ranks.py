"""Critical-difference diagram: mean ranks on a line, joined where they do not differ (Demsar, JMLR 2006)."""

from __future__ import annotations

from markupsafe import Markup, escape

from fdamed.evaluation.comparison.run_pairs import Ranking
from fdamed.report.plots.figure import element, figure, linear, polyline, rule, text


def critical_difference(found: Ranking) -> Markup:
    """Mean ranks with names at both sides; bars join runs that do not differ significantly."""
    k = len(found.names)
    left, right, top = 150.0, 610.0, 58.0
    x = linear(1, k).between(left, right)
    half = -(-k // 2)
    body = [rule("zero", left, top, right, top)]
    for place in range(1, k + 1):
        body += [rule("zero", x(place), top - 5, x(place), top), text(x(place), top - 10, str(place))]
    body.append(rule("span ink", left, 20, x(1 + min(found.apart, k - 1)), 20))
    body.append(text(left, 13, f"critical difference {found.apart:.2f}", anchor="start"))
    for i, (first, last) in enumerate(found.cliques):
        y = top + 10 + 10 * i
        body.append(rule("span", x(found.ranks[first]) - 4, y, x(found.ranks[last]) + 4, y, 0))
    for i, (name, rank) in enumerate(zip(found.names, found.ranks, strict=True)):
        on_left = i < half
        y = top + 30 + 10 * len(found.cliques) + 20 * (i if on_left else k - 1 - i)
        end, anchor = (left - 10, "end") if on_left else (right + 10, "start")
        body.append(polyline("leader muted", [(x(rank), top), (x(rank), y), (end + (4 if on_left else -4), y)]))
        words = f'{escape(name)} <tspan class="tick">{rank:.2f}</tspan>'
        body.append(element("text", "name", words, x=end, y=y + 4, text_anchor=anchor))
    height = top + 42 + 20 * half + 10 * len(found.cliques)
    words = "Mean ranks: " + "; ".join(f"{n} {r:.2f}" for n, r in zip(found.names, found.ranks, strict=True)) + "."
    return figure(760, height, "Mean ranks of the runs over the targets", body, words=words)
