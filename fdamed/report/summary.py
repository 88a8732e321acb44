"""The answer in words: which run is best at the target, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fdamed.evaluation.intervals import Interval
from fdamed.evaluation.run_tables import ALL_TARGETS
from fdamed.report.formatting import interval
from fdamed.report.subgroups import paired

CEILING = "oracle"
"""Trains on all of the target’s labels: an upper bound, not a competitor."""
ALONE = "target_only"


def is_ceiling(method: str) -> bool:
    """Also where another method goes on from it."""
    return CEILING in method.split(", then ")


def answer(
    target: str,
    scores: Mapping[str, Interval],
    methods: Mapping[str, str],
    name: str = "AUC",
    tuned: bool = False,
    audit: Mapping[str, Any] | None = None,
    metric: str = "auc",
) -> list[str]:
    """Sentences about the score `name`, in the audit `metric`, at `target`.

    `tuned`: the runs are values of a sweep, seen on the test split. Where the audit compares runs on the same patients,
    that test says how sure a lead is; intervals over seeds only elsewhere.
    """
    place = "on average over all targets" if target == ALL_TARGETS else f"at {target}"
    known = {run: s for run, s in scores.items() if s.mean is not None}
    rivals = sorted((r for r in known if not is_ceiling(methods[r])), key=lambda r: -_mean(known[r]))
    if not rivals:
        return [f"No run has a defined {name} {place}, so no method can be called best."]
    best = rivals[0]
    top = known[best]
    if top.low is None:
        first = f"{best} reaches the highest {name} {place}: {_mean(top):.3f}, from a single seed."
    else:
        first = f"{best} reaches the highest {name} {place}: {interval(top)} over {top.n} seeds."
    chosen = ["Its value was picked by looking at the test split: a new study must confirm it."] if tuned else []
    last = _ceiling(known, methods, name)
    others = rivals[1:]
    tests = {r: pair["ahead"] for r in others if audit and (pair := paired(audit, best, r, metric)) is not None}
    sureness = _tested(others, tests) if tests else _sureness(best, others, known)
    return [first, *chosen, *sureness, *_alone(best, known, methods, tests), *last]


def _mean(score: Interval) -> float:
    return score.mean if score.mean is not None else float("-inf")


def _tested(others: list[str], tests: Mapping[str, bool]) -> list[str]:
    """From run -> whether the best is surely above it on the same patients."""
    close, untested = [r for r in tests if not tests[r]], [r for r in others if r not in tests]
    if close:
        out = [f"On the same patients its lead over {_named(close)} may be chance (Holm-corrected p of 0.05 or more)."]
    else:
        whom = "every other run that was compared" if untested else "every other run"
        out = [f"On the same patients its lead over {whom} is unlikely to be chance (Holm-corrected p below 0.05)."]
    return [*out, f"Not compared so: {_named(untested)}."] if untested else out


def _named(runs: list[str]) -> str:
    return ", ".join(runs[:3]) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")


def _sureness(best: str, others: list[str], known: Mapping[str, Interval]) -> list[str]:
    if not others:
        return ["There is no other run to compare it with."]
    touch = [r for r in others if known[best].overlaps(known[r])]
    unknown = [r for r in others if known[best].overlaps(known[r]) is None]
    out = []
    if unknown and len(unknown) == len(others):
        return ["Without an interval for both sides nothing can be said about chance: run at least 3 seeds."]
    if not touch:
        whom = "any other run" if not unknown else "any other run that has one"
        out.append(f"Its 95 % interval does not overlap with that of {whom}: the lead is unlikely to be chance.")
    else:
        named = _named(touch)
        out.append(f"Its 95 % interval overlaps with that of {named}: between these the order may be chance.")
    if unknown:
        out.append(f"No interval exists for {', '.join(unknown[:3])}{' and others' if len(unknown) > 3 else ''}.")
    return out


def _alone(
    best: str, known: Mapping[str, Interval], methods: Mapping[str, str], tests: Mapping[str, bool]
) -> list[str]:
    """Whether the other hospitals helped at all."""
    alone = next((r for r in known if methods[r] == ALONE), None)
    if alone is None:
        return []
    if alone == best:
        return ["Training on the target’s own few labels was best: the other hospitals did not help here."]
    gain = _mean(known[best]) - _mean(known[alone])
    if alone in tests:
        sure = "and on the same patients that is unlikely to be chance"
        doubt = sure if tests[alone] else "but on the same patients that may be chance"
    else:
        doubt = {
            True: "but the intervals over seeds overlap",
            False: "and the intervals over seeds do not overlap",
            None: "without intervals",
        }[known[best].overlaps(known[alone])]
    return [f"{best} is {gain:.3f} above training on the target’s own labels alone ({alone}), {doubt}."]


def _ceiling(known: Mapping[str, Interval], methods: Mapping[str, str], name: str) -> list[str]:
    ceiling = next((r for r in known if is_ceiling(methods[r])), None)
    if ceiling is None:
        return []
    return [f"With all of the target’s labels ({ceiling}, not a competitor) the {name} is {_mean(known[ceiling]):.3f}."]
