"""The answer at a glance: the best method, how sure that is, what it brings and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fdamed.evaluation.intervals import Interval
from fdamed.report.formatting import interval, megabytes
from fdamed.report.subgroups import paired
from fdamed.report.summary import ALONE
from fdamed.report.target_view import Row, View


@dataclass(frozen=True)
class Card:
    """A short word, a figure, and what it means; `doubt`: the reader should not rest on it."""

    label: str
    value: str
    note: str
    doubt: bool = False


def cards(view: View, main: str, name: str, audit: Mapping[str, Any] | None) -> list[Card]:
    """Of the first view; none where no run can be called best."""
    known = [row for row in view.plain or view.swept if row.scores[main].mean is not None]
    rivals = [row for row in known if not row.ceiling]
    if not rivals:
        return []
    best, score = rivals[0], rivals[0].scores[main]
    seeds = f"{score.n} seeds" if score.n > 1 else "one seed"
    out = [Card("Best method", best.run, f"{name} {interval(score)}, {seeds}")]
    if rivals[1:]:
        out.append(_sureness(best, rivals[1], main, name, audit))
    alone = next((row for row in rivals if row.method == ALONE), None)
    if alone is not None and alone is not best:
        out.append(_over_alone(best, alone, main, name, audit))
    top = next((row for row in known if row.ceiling), None)
    if top is not None:
        left = _mean(top.scores[main]) - _mean(score)
        words = f"in {name} to {top.run}, which knows all of the target’s labels"
        out.append(Card("Still missing", f"{left:.3f}" if left > 0 else "nothing", words))
    if best.mb is not None:
        out.append(Card("Left the hospitals", megabytes(best.mb), f"in one run of {best.run}, of all hospitals"))
    return out


def _mean(score: Interval) -> float:
    return 0.0 if score.mean is None else score.mean


def _sureness(best: Row, second: Row, main: str, name: str, audit: Mapping[str, Any] | None) -> Card:
    """Against the next best run: the paired test on the same patients where there is one, else the intervals."""
    pair = paired(audit, best.run, second.run, main) if audit else None
    if pair is not None:
        sure = pair["ahead"]
        ends = f"({pair['low']:+.1f} to {pair['high']:+.1f})"
        points = f"{pair['points']:+.1f} points of {name} {ends}".replace("-", "−")
        told = f"{points} over {second.run} on the same patients, Holm-corrected p {_p(pair['p'])}"
        return Card("How sure", "a clear lead" if sure else "may be chance", told, doubt=not sure)
    apart = f"{_mean(best.scores[main]) - _mean(second.scores[main]):+.3f} over {second.run}"
    overlap = best.scores[main].overlaps(second.scores[main])
    if overlap is None:
        return Card("How sure", "cannot be told", f"{apart}, without intervals: run at least 3 seeds", doubt=True)
    told = "overlap" if overlap else "are apart"
    value = "may be chance" if overlap else "a clear lead"
    return Card("How sure", value, f"{apart}; the 95 % intervals over seeds {told}", doubt=overlap)


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.2g}"


def _over_alone(best: Row, alone: Row, main: str, name: str, audit: Mapping[str, Any] | None) -> Card:
    """Against the target's own few labels, by the same test."""
    gain = _mean(best.scores[main]) - _mean(alone.scores[main])
    pair = paired(audit, best.run, alone.run, main) if audit else None
    if pair is not None:
        sure, told = pair["ahead"], f"on the same patients p {_p(pair['p'])}"
    else:
        overlap = best.scores[main].overlaps(alone.scores[main])
        words = {True: "the intervals overlap", False: "the intervals are apart", None: "without intervals"}
        sure, told = overlap is False, words[overlap]
    note = f"{name} over the target’s own few labels ({alone.run}); {told}"
    return Card("What the others bring", f"{gain:+.3f}".replace("-", "−"), note, doubt=not sure)
