"""The result in sentences and cards: which run is best at the target, and whether its lead is significant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fdamed.evaluation.intervals import ends, interval, megabytes, p_value, signed
from fdamed.evaluation.run_tables import ALL_TARGETS
from fdamed.report.audit import Audit, pairwise
from fdamed.report.study import METRICS, Row, Study, View

SENTENCES = {
    "no_score": "No run has a defined {metric} {place}, so no method can be called best.",
    "best": "{best} reaches the highest {metric} {place}: {score} {seeds}.",
    "selected": "Its value was selected on the test part: a new study must confirm it.",
    # On the same patients, where the audit compared the runs: its tests decide.
    "not_significant": "On the same patients, its lead over {close} is not significant (Holm-adjusted p ≥ 0.05).",
    "significant": "On the same patients, its lead over every compared run is significant (Holm-adjusted p < 0.05).",
    "untested": "Not compared: {untested}.",
    # Otherwise, over seeds.
    "only_run": "There is no other run to compare it with.",
    "no_intervals": "There are no confidence intervals to compare: run at least 3 seeds.",
    "overlaps": "Its 95% confidence interval overlaps that of {touching}: their order is uncertain.",
    "apart": "Its 95% confidence interval does not overlap the interval of any other run.",
    "without_interval": "Without an interval: {unknown}.",
    # Did the other hospitals help?
    "no_help": "Training on the target’s own few labels was best: the other hospitals did not help here.",
    "gain": "{best} is {gain:.3f} above training on the target’s own labels alone ({alone}): {evidence}.",
    "ceiling": "With all of the target’s labels ({ceiling}, an upper bound) the {metric} is {bound:.3f}.",
}
"""Every sentence of the headline; `answer` chooses which apply, in which order."""
OVERLAP = {
    True: "the intervals over seeds overlap",
    False: "the intervals over seeds do not overlap",
    None: "no intervals over seeds",
}


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
    """The sentences about the best run at the view's target."""
    place = "on average over all targets" if view.name == ALL_TARGETS else f"at {view.name}"
    facts: dict[str, object] = {"metric": METRICS[main], "place": place}
    rivals, alone, ceiling = _candidates(view, main)
    if not rivals:
        return [SENTENCES["no_score"].format(**facts)]
    best, *others = rivals
    score = best.scores[main]
    seeds = "from a single seed" if score.low is None else f"over {score.n} seeds"
    facts |= {"best": best.run, "score": interval(score), "seeds": seeds}
    tests = {r.run: pair["ahead"] for r in others if (pair := pairwise(audit, best.run, r.run, main))}
    overlaps = {r.run: score.overlaps(r.scores[main]) for r in others}
    close, untested = [r for r in tests if not tests[r]], [r for r in overlaps if r not in tests]
    touching, unknown = ([r for r, overlap in overlaps.items() if overlap is which] for which in (True, None))
    facts |= {"close": _named(close), "untested": _named(untested)}
    facts |= {"touching": _named(touching), "unknown": _named(unknown)}
    lines = ["best"] if view.plain else ["best", "selected"]
    if tests:
        lines.append("not_significant" if close else "significant")
        lines += ["untested"] if untested else []
    elif len(unknown) == len(others):
        lines.append("no_intervals" if others else "only_run")
    else:
        lines.append("overlaps" if touching else "apart")
        lines += ["without_interval"] if unknown else []
    if alone is best:
        lines.append("no_help")
    elif alone is not None:
        evidence = OVERLAP[overlaps[alone.run]]
        if alone.run in tests:
            evidence = f"a {'' if tests[alone.run] else 'non-'}significant difference on the same patients"
        facts |= {"gain": best.height(main) - alone.height(main), "alone": alone.run, "evidence": evidence}
        lines.append("gain")
    if ceiling is not None:
        facts |= {"ceiling": ceiling.run, "bound": ceiling.height(main)}
        lines.append("ceiling")
    return [SENTENCES[line].format(**facts) for line in lines]


def _candidates(view: View, main: str) -> tuple[list[Row], Row | None, Row | None]:
    """The runs with a score, best first, without upper bounds; the target alone; and the first upper bound."""
    known = [row for row in view.ranked if row.scores[main].mean is not None]
    rivals = [row for row in known if not row.ceiling]
    alone = next((row for row in rivals if row.alone), None)
    return rivals, alone, next((row for row in known if row.ceiling), None)


def _named(runs: Sequence[str]) -> str:
    return ", ".join(runs[:3]) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")


def glance(view: View, main: str, audit: Audit | None) -> list[Card]:
    """The result as cards; none where no run can be called best."""
    rivals, alone, ceiling = _candidates(view, main)
    if not rivals:
        return []
    best, name = rivals[0], METRICS[main]
    score = best.scores[main]
    seeds = f"{score.n} seeds" if score.n > 1 else "one seed"
    out = [Card("Best method", best.run, f"{name} {interval(score)}, {seeds}")]
    if rivals[1:]:
        out.append(_lead("Lead over the runner-up", best, rivals[1], main, audit))
    if alone is not None and alone is not best:
        out.append(_lead("Gain over target only", best, alone, main, audit))
    if ceiling is not None:
        gap = ceiling.height(main) - best.height(main)
        note = f"in {name} to {ceiling.run}, which trains on all of the target’s labels"
        out.append(Card("Gap to the upper bound", f"{gap:.3f}" if gap > 0 else "none", note))
    if best.mb is not None:
        note = f"in one run of {best.run}, all hospitals together"
        out.append(Card("Sent by the hospitals", megabytes(best.mb), note))
    return out


def _lead(label: str, best: Row, other: Row, main: str, audit: Audit | None) -> Card:
    """A difference and whether it is significant: by the paired test if there is one, else by the intervals."""
    pair = pairwise(audit, best.run, other.run, main)
    if pair is not None:
        note = f"{METRICS[main]} over {other.run} on the same patients: {signed(pair['points'])} points "
        note += f"({ends(pair, 1, sign='+')}), Holm-adjusted p {p_value(pair['p'])}"
        return Card(label, "significant" if pair["ahead"] else "not significant", note, doubt=not pair["ahead"])
    overlap = best.scores[main].overlaps(other.scores[main])
    note = f"{METRICS[main]} over {other.run}: {OVERLAP[overlap]}" + ("; run at least 3 seeds" * (overlap is None))
    return Card(label, signed(best.height(main) - other.height(main), 3), note, doubt=overlap is not False)
