"""The leak probe, for the page: how well sex, age, race and view are read from each model's features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from fdamed.evaluation.attribute_inference import UNTRAINED
from fdamed.report.svg import color, drawing, number, scale, ticks


def block(probe: Mapping[str, Any] | None, order: Sequence[str], index: Mapping[str, int]) -> dict[str, Any] | None:
    """The section of one target; None where nothing was asked or nothing could be."""
    if not probe or not probe["attributes"]:
        return None
    names = [UNTRAINED, *(run for run in order if run in probe["runs"])]
    return {
        "images": probe["images"],
        "drawing": drawn(probe, names, index),
        "attributes": [{"name": name, "classes": told["classes"]} for name, told in probe["attributes"].items()],
        "rows": [row for name in names if (row := _row(probe, name))],
        "heads": sorted(_heads(probe, names), key=lambda pair: -float(pair["points"])),
        "ages": "age" in probe["attributes"],
    }


def _heads(probe: Mapping[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """What auxiliary heads change, a row an attribute and pair of runs."""
    return [
        {"attribute": name, **_points(pair), **pair}
        for name, told in probe["attributes"].items()
        for pair in told["heads"]
        if pair["run"] in names
    ]


def _row(probe: Mapping[str, Any], run: str) -> dict[str, Any] | None:
    cells = [told["runs"].get(run) for told in probe["attributes"].values()]
    return {"run": run, "cells": cells} if any(cells) else None


def _points(pair: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "points": 100 * pair["value"],
        "from": 100 * pair["low"],
        "to": 100 * pair["high"],
        "sure": pair["low"] > 0 or pair["high"] < 0,
    }


def drawn(probe: Mapping[str, Any], names: Sequence[str], index: Mapping[str, int]) -> Markup:
    """A panel an attribute, a line a model: the area with its interval, and a cross for labels dealt at random."""
    panels = list(probe["attributes"].items())
    left, width, apart, top, row = 150.0, max(120.0, 600.0 / len(panels) - 24), 24.0, 34.0, 22.0
    bottom = top + row * len(names)
    ends = [v for _, told in panels for r in names if (t := told["runs"].get(r)) for v in (t["low"], t["high"])]
    low, high = min(0.4, *ends), min(1.0, max(0.8, *ends))
    low = max(0.0, low)
    body = []
    for i, name in enumerate(names):
        y = top + row * (i + 0.5) + 4
        body.append(f'<text class="name" x="{left - 12}" y="{y}" text-anchor="end">{escape(name)}</text>')
    for k, (attribute, told) in enumerate(panels):
        begin = left + k * (width + apart)
        x = scale(low, high, begin, begin + width)
        at = f'x="{begin + width / 2}" y="{top - 16}" text-anchor="middle"'
        body.append(f'<text class="axis" {at}>{escape(attribute)}</text>')
        for value in ticks(low, high, 3):
            body.append(f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{top - 4}" y2="{bottom}"/>')
            at = f'x="{x(value):.1f}" y="{bottom + 16}" text-anchor="middle"'
            body.append(f'<text class="tick" {at}>{number(value)}</text>')
        body.append(f'<line class="reference" x1="{x(0.5):.1f}" x2="{x(0.5):.1f}" y1="{top - 4}" y2="{bottom}"/>')
        for i, name in enumerate(names):
            if name in told["runs"]:
                body += _mark(told["runs"][name], attribute, name, x, top + row * (i + 0.5), index.get(name), high)
    return drawing(left + len(panels) * (width + apart), bottom + 22, "What can be read from the features", body)


def _mark(
    told: Mapping[str, Any], attribute: str, name: str, x: Any, y: float, index: int | None, high: float
) -> list[str]:
    paint = "var(--muted)" if index is None else color(index)
    words = f"{attribute} from {name}: {told['value']:.3f}, {told['low']:.3f} to {told['high']:.3f}"
    out = []
    if told.get("shuffled") is not None:
        at, s = x(told["shuffled"]), 3
        cross = f"M{at - s:.1f},{y - s}l{2 * s},{2 * s}M{at - s:.1f},{y + s}l{2 * s},{-2 * s}"
        out.append(f'<path class="line" style="stroke:var(--muted);stroke-width:1.2" d="{cross}"/>')
    ends = f'x1="{x(max(0.0, told["low"])):.1f}" x2="{x(min(high, told["high"])):.1f}" y1="{y}" y2="{y}"'
    out.append(f'<line class="span" style="stroke:{paint}" {ends}/>')
    spot = f'cx="{x(told["value"]):.1f}" cy="{y}" r="4.5"'
    out.append(f'<circle style="fill:{paint}" {spot}><title>{escape(words)}</title></circle>')
    return out
