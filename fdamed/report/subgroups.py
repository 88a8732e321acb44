"""The audit by subgroup, for the page: a forest of groups, a table of their scores, and whether chances are true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from fdamed.evaluation.intervals import SURE
from fdamed.report.svg import color, drawing, limits, number, room, scale, ticks

Audit = Mapping[str, Any]
Told = Mapping[str, Any]
"""value, low, high."""


def paired(audit: Audit, run: str, other: str, metric: str) -> dict[str, Any] | None:
    """How far `run` is above `other`, in points, and whether it surely is."""
    for pair in audit["pairs"]:
        if pair["metric"] == metric and {pair["first"], pair["second"]} == {run, other} and run != other:
            return oriented(pair, run)
    return None


def oriented(pair: Told, run: str) -> dict[str, Any]:
    """A pair of runs as seen from one of them."""
    sign = 1 if pair["first"] == run else -1
    ends = sorted((sign * pair["low"], sign * pair["high"]))
    sizes = {k: sign * pair[k] for k in ("cohens_h", "separation", "cliffs_delta") if pair.get(k) is not None}
    return {
        "other": pair["second"] if sign == 1 else pair["first"],
        "points": 100 * sign * pair["value"],
        "low": 100 * ends[0],
        "high": 100 * ends[1],
        "p": pair["p_holm"],
        "ahead": sign * pair["value"] > 0 and pair["p_holm"] < SURE,
        "sizes": sizes,
    }


def label(group: Audit) -> str:
    """`sex: Female`, or of two attributes `Female, under 40`."""
    return f"{group['by'][0]}: {group['are'][0]}" if len(group["by"]) == 1 else ", ".join(group["are"])


def rows(audit: Audit, run: str, attributes: int) -> list[dict[str, Any]]:
    """The groups of so many attributes: their scores and what they gain, as the table shows them."""
    out = []
    for group in audit["groups"]:
        here = group["runs"].get(run)
        if len(group["by"]) != attributes or not here:
            continue
        told = {k: here.get(k) for k in ("auc", "sensitivity", "false_alarms", "bias")}
        brier = {"value": here.get("brier"), "low": here.get("brier_low"), "high": here.get("brier_high")}
        out.append(
            {
                "group": label(group),
                "n": group["n"],
                **told,
                "brier": brier,
                "error": here.get("calibration_error"),
                "limit": here.get("calibration_limit"),
                "gain": here.get("gain"),
            }
        )
    return out


def forest(audit: Audit, run: str, index: int) -> Markup:
    """AUC of the run and of the reference in all patients and in every group, and the gain, with intervals."""
    reference = audit["reference"]
    lines = _lines(audit, run, reference)
    if not lines:
        return Markup("")
    names = max(150.0, room([line[0] for line in lines]))
    left, middle, right = (names, names + 200.0), (names + 232.0, names + 412.0), names + 424.0
    top, row = 34.0, 24.0
    bottom = top + row * len(lines)
    areas = [v for line in lines for told in line[2:4] if told for v in (told["low"], told["high"])]
    gains = [100 * line[4][k] for line in lines for k in ("low", "high")]
    low, high = limits([min(1.0, max(0.0, v)) for v in areas]) if areas else (0.0, 1.0)
    x = scale(low, high, *left)
    least, most = min(0.0, *gains), max(0.0, *gains)
    g = scale(least, most, *middle)
    body = _axis(x, ticks(low, high, 4), "AUC", left, top, bottom, number)
    body += _axis(g, ticks(least, most, 4), f"points gained over {reference}", middle, top, bottom, _signed)
    body.append(f'<line class="zero" x1="{g(0):.1f}" x2="{g(0):.1f}" y1="{top - 4}" y2="{bottom}"/>')
    for i, (name, counted, own, other, gain) in enumerate(lines):
        y = top + row * (i + 0.5)
        body.append(f'<text class="name" x="{left[0] - 12}" y="{y + 4}" text-anchor="end">{escape(name)}</text>')
        if other:
            spot = f'cx="{x(other["value"]):.1f}" cy="{y}" r="4"'
            words = f"{name}: {reference} {other['value']:.3f}, {other['low']:.3f} to {other['high']:.3f}"
            body.append(
                f'<circle class="ring" style="stroke:var(--muted)" {spot}><title>{escape(words)}</title></circle>'
            )
        if own:
            words = f"{name}: {run} {own['value']:.3f}, {own['low']:.3f} to {own['high']:.3f}"
            ends = max(low, own["low"]), min(high, own["high"])
            body += _span(x, own["value"], ends, y, index, words)
        words = f"{name}: {100 * gain['value']:+.1f} points, {100 * gain['low']:+.1f} to {100 * gain['high']:+.1f}"
        body += _span(g, 100 * gain["value"], (100 * gain["low"], 100 * gain["high"]), y, index, words)
        told = f"{100 * gain['value']:+.1f} ({100 * gain['low']:+.1f} to {100 * gain['high']:+.1f})"
        body.append(f'<text class="name" x="{right}" y="{y + 4}">{told}</text>')
        body.append(f'<text class="tick" x="{right + 140}" y="{y + 4}">{counted}</text>')
    return drawing(names + 650, bottom + 22, f"AUC of {run} and gain over {reference} by group", body)


def _lines(audit: Audit, run: str, reference: str) -> list[tuple[str, str, Told | None, Told | None, Told]]:
    """Name, number of images, AUC of the run, AUC of the reference, gain."""
    out: list[tuple[str, str, Told | None, Told | None, Told]] = []
    whole = paired(audit, run, reference, "auc")
    if whole:
        gain = {"value": whole["points"] / 100, "low": whole["low"] / 100, "high": whole["high"] / 100}
        scores = audit["scores"].get("auc", {})
        out.append(("all", "", scores.get(run), scores.get(reference), gain))
    for group in audit["groups"]:
        here, there = group["runs"].get(run, {}), group["runs"].get(reference, {})
        if len(group["by"]) == 1 and here.get("gain"):
            counted = "" if group["n"] is None else f"{group['n']:,} images"
            out.append((label(group), counted, here.get("auc"), there.get("auc"), here["gain"]))
    return out


def _signed(value: float) -> str:
    return f"{value:+.3g}" if value else "0"


def _axis(
    x: Any, values: Sequence[float], name: str, box: tuple[float, float], top: float, bottom: float, words: Any
) -> list[str]:
    """Upright lines, their numbers below and the name above."""
    out = [f'<text class="axis" x="{(box[0] + box[1]) / 2}" y="{top - 16}" text-anchor="middle">{escape(name)}</text>']
    for value in values:
        out.append(f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{top - 4}" y2="{bottom}"/>')
        at = f'x="{x(value):.1f}" y="{bottom + 16}" text-anchor="middle"'
        out.append(f'<text class="tick" {at}>{words(value)}</text>')
    return out


def _span(x: Any, value: float, ends: tuple[float, float], y: float, index: int, words: str) -> list[str]:
    """A dot with its interval, and what it says when it is pointed at."""
    line = f'x1="{x(ends[0]):.1f}" x2="{x(ends[1]):.1f}" y1="{y}" y2="{y}"'
    spot = f'cx="{x(value):.1f}" cy="{y}" r="4.5"'
    return [
        f'<line class="span" style="stroke:{color(index)}" {line}/>',
        f'<circle style="fill:{color(index)}" {spot}><title>{escape(words)}</title></circle>',
    ]


def reliability(title: str, bins: Sequence[Mapping[str, float]], index: int) -> Markup:
    """Share of positives against what was said, a dot a bin, its area by images."""
    left, right, top, bottom = 34.0, 204.0, 8.0, 178.0
    x, y = scale(0, 1, left, right), scale(0, 1, bottom, top)
    body = [f'<line class="reference" x1="{x(0)}" y1="{y(0)}" x2="{x(1)}" y2="{y(1)}"/>']
    for value in (0, 0.5, 1):
        body.append(f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{top}" y2="{bottom}"/>')
        body.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        body.append(
            f'<text class="tick" x="{x(value):.1f}" y="{bottom + 16}" text-anchor="middle">{number(value)}</text>'
        )
        body.append(
            f'<text class="tick" x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{number(value)}</text>'
        )
    path = " ".join(f"{x(b['chance']):.1f},{y(b['rate']):.1f}" for b in bins)
    body.append(f'<polyline class="line" style="stroke:{color(index)}" points="{path}"/>')
    most = max(b["n"] for b in bins)
    for b in bins:
        told = f"said {b['chance']:.2f}, true {b['rate']:.2f}, {b['n']} images"
        body.append(
            f'<circle style="fill:{color(index)}" cx="{x(b["chance"]):.1f}" cy="{y(b["rate"]):.1f}" '
            f'r="{2 + 3 * (b["n"] / most) ** 0.5:.1f}"><title>{told}</title></circle>'
        )
    return drawing(214, 200, f"Calibration of {title}", body, "chart small")


def diagrams_by_group(audit: Audit, run: str, index: int) -> list[dict[str, Any]]:
    """One diagram a group of one attribute, where its bins may be shown."""
    out = []
    for group in audit["groups"]:
        bins = (group.get("calibration") or {}).get(run)
        if bins and len(group["by"]) == 1:
            here = group["runs"][run]
            title = f"{run}, {label(group)}"
            out.append(
                {
                    "group": label(group),
                    "error": here["calibration_error"],
                    "limit": here.get("calibration_limit"),
                    "drawing": reliability(title, bins, index),
                }
            )
    return out
