"""What an audit found about two runs or a group of patients; audits are the files that `fdamed audit` writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fdamed.evaluation.intervals import SURE
from fdamed.report.study import Study, View

Audit = Mapping[str, Any]
ENDS = ("value", "low", "high")


def pairwise(audit: Audit | None, run: str, other: str, metric: str) -> dict[str, Any] | None:
    """How far `run` is above `other` in points, and whether that is significant; None if they were not compared."""
    for pair in (audit or {}).get("pairs", ()):
        if pair["metric"] == metric and (pair["first"], pair["second"]) in ((run, other), (other, run)):
            return oriented(pair, run)
    return None


def oriented(pair: Audit, run: str) -> dict[str, Any]:
    """A compared pair as seen from one of its runs."""
    sign = 1 if pair["first"] == run else -1
    low, high = sorted((100 * sign * pair["low"], 100 * sign * pair["high"]))
    errors = {key: pair[key] for key in ("patients", "seeds_error", "seeds_df", "seeds") if key in pair}
    return errors | {
        "other": pair["second"] if sign == 1 else pair["first"],
        "points": 100 * sign * pair["value"],
        "low": low,
        "high": high,
        "p": pair["p_holm"],
        "significant": pair["p_holm"] < SURE,
        "ahead": sign * pair["value"] > 0 and pair["p_holm"] < SURE,
    }


def visible(points: float) -> str:
    """The smallest difference that could be seen, in points; no study is about larger ones than 50."""
    return f"{points:.1f}" if points <= 50 else "more than 50"


def group_name(group: Audit) -> str:
    """`sex: Female`, or for two attributes `Female, under 40`."""
    return f"{group['by'][0]}: {group['are'][0]}" if len(group["by"]) == 1 else ", ".join(group["are"])


def audited(study: Study) -> list[tuple[View, Audit, list[str]]]:
    """View, audit and compared runs, best first, of each target whose audit may be shown."""
    found = [(v, study.audits[v.name]) for v in study.views if v.name in study.audits]
    return [(v, a, [r.run for r in v.ranked if r.run in a["runs"]]) for v, a in found if not a.get("suppressed")]
