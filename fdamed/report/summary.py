"""The result in sentences and cards: which run is best at the target, and whether its lead is significant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fdamed.evaluation.formatting import ends, interval, megabytes, p_value, signed
from fdamed.evaluation.run_tables import ALL_TARGETS
from fdamed.report.audit import Audit, pairwise
from fdamed.report.study import ALONE, METRICS, Row, Study, View


@dataclass(frozen=True)
class Card:
    """A label, a value, and what it means; `doubt`: not significant."""

    label: str
    value: str
    note: str
    doubt: bool = False


def sentences(study: Study, view: View) -> list[str]:
    return answer(view, study.main, study.audits.get(view.name))


def cards(study: Study) -> list[Card]:
    return glance(study.views[0], study.main, study.audits.get(study.views[0].name))


def answer(view: View, main: str, audit: Audit | None = None) -> list[str]:
    """Sentences about the best run at the view's target.

    Where an audit compares runs on the same patients, its test decides; otherwise the intervals over seeds.
    """
    name = METRICS[main]
    place = "on average over all targets" if view.name == ALL_TARGETS else f"at {view.name}"
    rivals, ceiling = _rivals(view, main)
    if not rivals:
        return [f"No run has a defined {name} {place}, so no method can be called best."]
    best, others = rivals[0], rivals[1:]
    score = best.scores[main]
    over = "from a single seed" if score.low is None else f"over {score.n} seeds"
    out = [f"{best.run} reaches the highest {name} {place}: {interval(score)} {over}."]
    if not view.plain:
        out.append("Its value was selected on the test split: a new study must confirm it.")
    tests = {r.run: pair["ahead"] for r in others if (pair := pairwise(audit, best.run, r.run, main))}
    out += _tested([r.run for r in others], tests) if tests else _over_seeds(best, others, main)
    out += _over_alone(best, rivals, main, tests)
    if ceiling:
        out.append(
            f"With all of the target’s labels ({ceiling.run}, an upper bound) the {name} is {_mean(ceiling, main):.3f}."
        )
    return out


def _rivals(view: View, main: str) -> tuple[list[Row], Row | None]:
    """The runs with a score, best first, without upper bounds; and the first upper bound."""
    known = [row for row in view.ranked if row.scores[main].mean is not None]
    return [r for r in known if not r.ceiling], next((r for r in known if r.ceiling), None)


def _mean(row: Row, main: str) -> float:
    mean = row.scores[main].mean
    return float("-inf") if mean is None else mean


def _tested(others: Sequence[str], tests: Mapping[str, bool]) -> list[str]:
    """From run -> whether the best is significantly above it on the same patients."""
    close, untested = [r for r in tests if not tests[r]], [r for r in others if r not in tests]
    if close:
        out = [f"On the same patients, its lead over {_named(close)} is not significant (Holm-adjusted p ≥ 0.05)."]
    else:
        whom = "every other run that was compared" if untested else "every other run"
        out = [f"On the same patients, its lead over {whom} is significant (Holm-adjusted p < 0.05)."]
    return [*out, f"Not compared: {_named(untested)}."] if untested else out


def _named(runs: Sequence[str]) -> str:
    return ", ".join(runs[:3]) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")


def _over_seeds(best: Row, others: Sequence[Row], main: str) -> list[str]:
    if not others:
        return ["There is no other run to compare it with."]
    overlaps = {r.run: best.scores[main].overlaps(r.scores[main]) for r in others}
    touch, unknown = [r for r, o in overlaps.items() if o], [r for r, o in overlaps.items() if o is None]
    if len(unknown) == len(others):
        return ["There are no confidence intervals to compare: run at least 3 seeds."]
    whom = "any other run that has one" if unknown else "any other run"
    first = (
        f"Its 95% confidence interval overlaps that of {_named(touch)}: their order is uncertain."
        if touch
        else f"Its 95% confidence interval does not overlap that of {whom}."
    )
    return [first, *([f"Without an interval: {_named(unknown)}."] if unknown else [])]


def _over_alone(best: Row, rivals: Sequence[Row], main: str, tests: Mapping[str, bool]) -> list[str]:
    """Whether the other hospitals helped."""
    alone = next((r for r in rivals if r.method == ALONE), None)
    if alone is None:
        return []
    if alone is best:
        return ["Training on the target’s own few labels was best: the other hospitals did not help here."]
    if alone.run in tests:
        doubt = f"a {'significant' if tests[alone.run] else 'non-significant'} difference on the same patients"
    else:
        doubt = _overlap_words(best.scores[main].overlaps(alone.scores[main]))
    gain = _mean(best, main) - _mean(alone, main)
    return [f"{best.run} is {gain:.3f} above training on the target’s own labels alone ({alone.run}): {doubt}."]


def _overlap_words(overlap: bool | None) -> str:
    return {
        True: "the intervals over seeds overlap",
        False: "the intervals over seeds do not overlap",
        None: "no intervals over seeds",
    }[overlap]


def glance(view: View, main: str, audit: Audit | None) -> list[Card]:
    """The result as cards; none where no run can be called best."""
    rivals, ceiling = _rivals(view, main)
    if not rivals:
        return []
    best, name = rivals[0], METRICS[main]
    score = best.scores[main]
    seeds = f"{score.n} seeds" if score.n > 1 else "one seed"
    out = [Card("Best method", best.run, f"{name} {interval(score)}, {seeds}")]
    if rivals[1:]:
        out.append(_lead("Lead over the runner-up", best, rivals[1], main, audit))
    alone = next((row for row in rivals if row.method == ALONE), None)
    if alone is not None and alone is not best:
        out.append(_lead("Gain over target only", best, alone, main, audit))
    if ceiling is not None:
        gap = _mean(ceiling, main) - _mean(best, main)
        note = f"in {name} to {ceiling.run}, which trains on all of the target’s labels"
        out.append(Card("Gap to the upper bound", f"{gap:.3f}" if gap > 0 else "none", note))
    if best.mb is not None:
        out.append(
            Card("Sent by the hospitals", megabytes(best.mb), f"in one run of {best.run}, all hospitals together")
        )
    return out


def _lead(label: str, best: Row, other: Row, main: str, audit: Audit | None) -> Card:
    """A difference and whether it is significant: by the paired test if there is one, else by the intervals."""
    pair = pairwise(audit, best.run, other.run, main)
    if pair is not None:
        verdict = "significant" if pair["ahead"] else "not significant"
        note = f"{METRICS[main]} over {other.run} on the same patients: {signed(pair['points'])} points "
        note += f"({ends(pair, 1, sign='+')}), Holm-adjusted p {p_value(pair['p'])}"
        return Card(label, verdict, note, doubt=not pair["ahead"])
    overlap = best.scores[main].overlaps(other.scores[main])
    note = f"{METRICS[main]} over {other.run}: {_overlap_words(overlap)}"
    if overlap is None:
        note += "; run at least 3 seeds"
    gain = _mean(best, main) - _mean(other, main)
    return Card(label, signed(gain, 3), note, doubt=overlap is not False)
