"""The answer in words: which run is best at the target, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping

from fdamed.evaluate.intervals import Interval
from fdamed.evaluate.tables import ALL_TARGETS
from fdamed.report.words import interval

CEILING = "oracle"
"""Trains on all of the target’s labels: an upper bound, not a competitor."""
ALONE = "target_only"


def answer(
    target: str, scores: Mapping[str, Interval], methods: Mapping[str, str], name: str = "AUC", tuned: bool = False
) -> list[str]:
    """Sentences about the score `name` at `target`; `tuned`: the runs are values of a sweep, seen on the test split."""
    place = "on average over all targets" if target == ALL_TARGETS else f"at {target}"
    known = {run: s for run, s in scores.items() if s.mean is not None}
    rivals = sorted((r for r in known if methods[r] != CEILING), key=lambda r: -_mean(known[r]))
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
    return [first, *chosen, *_sureness(best, rivals, known), *_alone(best, known, methods), *last]


def _mean(score: Interval) -> float:
    return score.mean if score.mean is not None else float("-inf")


def _sureness(best: str, rivals: list[str], known: Mapping[str, Interval]) -> list[str]:
    others = rivals[1:]
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
        named = ", ".join(touch[:3]) + (f" and {len(touch) - 3} more" if len(touch) > 3 else "")
        out.append(f"Its 95 % interval overlaps with that of {named}: between these the order may be chance.")
    if unknown:
        out.append(f"No interval exists for {', '.join(unknown[:3])}{' and others' if len(unknown) > 3 else ''}.")
    return out


def _alone(best: str, known: Mapping[str, Interval], methods: Mapping[str, str]) -> list[str]:
    """Whether the other hospitals helped at all."""
    alone = next((r for r in known if methods[r] == ALONE), None)
    if alone is None:
        return []
    if alone == best:
        return ["Training on the target’s own few labels was best: the other hospitals did not help here."]
    gain = _mean(known[best]) - _mean(known[alone])
    overlap = known[best].overlaps(known[alone])
    doubt = {
        True: "but the intervals over seeds overlap",
        False: "and the intervals over seeds do not overlap",
        None: "without intervals",
    }
    return [f"{best} is {gain:.3f} above training on the target’s own labels alone ({alone}), {doubt[overlap]}."]


def _ceiling(known: Mapping[str, Interval], methods: Mapping[str, str], name: str) -> list[str]:
    ceiling = next((r for r in known if methods[r] == CEILING), None)
    if ceiling is None:
        return []
    return [f"With all of the target’s labels ({ceiling}, not a competitor) the {name} is {_mean(known[ceiling]):.3f}."]
