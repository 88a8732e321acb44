"""The result as cards, which say what the heading says."""

from __future__ import annotations

from dataclasses import dataclass

from fdamed.evaluation.intervals import counted, listed, megabytes
from fdamed.report.audit import visible
from fdamed.report.headline import chosen, short
from fdamed.report.headline_facts import Facts
from fdamed.report.headline_words import difference, names, score
from fdamed.report.study import METRICS, Row

NO_BEST = {
    "untested": "the runs were not compared on the same patients",
    "not_everywhere": "no run is best at every target",
    "no_leader": "the highest is not above all others",
}
"""Rule of the heading -> why no method is best."""


@dataclass(frozen=True)
class Card:
    """A label, a value, and what it means; `tone`: good (significant), doubt (not significant) or neither."""

    label: str
    value: str
    note: str
    tone: str = ""


def cards(facts: Facts) -> list[Card]:
    """The result as cards, which say what the heading says; none without scores."""
    if not facts.rivals:
        return []
    name, best = METRICS[facts.main], facts.best
    out = [_first(facts)]
    if facts.lead:
        out.append(_lead("Highest over second", facts, best, facts.second))
    if short(facts):
        note = f"in {name} between {best.run} and {facts.second.run}, with 80% power; other pairs have their own"
        out.append(Card("Smallest visible difference", f"{visible(facts.smallest)} points", note))
    if facts.pair(facts.helper, facts.alone) and facts.helper and facts.alone:
        out.append(_lead("With other hospitals", facts, facts.helper, facts.alone))
    if facts.ceiling is not None:
        out.append(_ceiling(facts, facts.ceiling))
    sent = sorted(
        {megabytes(row.mb): row.mb for row in facts.leaders if row.mb is not None}.items(), key=lambda e: e[1]
    )
    if sent:
        of = f"{best.run}" if facts.won else "the runs that may be best"
        ends_of = [sent[0][0], sent[-1][0]] if len(sent) > 1 else [sent[0][0]]
        out.append(Card("Sent by the hospitals", " to ".join(ends_of), f"in one run of {of}, all hospitals together"))
    return out


def _first(facts: Facts) -> Card:
    name, best, rule = METRICS[facts.main], facts.best, chosen(facts)[0].name
    found = f"{name} {score(facts, best)}, {counted(best.scores[facts.main].n, 'seed')}"
    if rule in ("winner", "best_everywhere"):
        return Card("Best method", best.run, found, "good")
    if rule == "best_model":
        return Card("Best model", best.run, f"{found}: the model, not yet the method")
    if rule == "leaders":
        few = len(facts.leaders) <= 3
        value = names(facts.leaders) if few else counted(len(facts.leaders), "run")
        return Card("Leaders", value, "not distinguished from the highest score on the same patients", "doubt")
    if rule == "only_run":
        return Card("Only method", best.run, found)
    why = NO_BEST.get(rule, "no lead is significant")
    return Card("Best method", "none", f"{why}; highest mean {name}: {best.run}", "doubt")


def _ceiling(facts: Facts, top: Row) -> Card:
    name, best = METRICS[facts.main], facts.best
    if facts.over_ceiling:
        note = f"{top.run} trains on all of the target’s labels and is below {listed(facts.over_ceiling)}"
        return Card("Upper bound", "none here", note, "doubt")
    gap = top.height(facts.main) - best.height(facts.main)
    note = f"in {name} from {best.run} to {top.run}, which trains on all of the target’s labels"
    return Card("Gap to the upper bound", f"{gap:.3f}", note)


def _lead(label: str, facts: Facts, first: Row, second: Row) -> Card:
    pair = facts.pair(first, second) or {}
    value = "significant" if pair["significant"] else "not significant"
    note = f"{METRICS[facts.main]} of {first.run} minus {second.run} on the same patients: {difference(pair)}"
    sure = "" if facts.one_seed else "good"  # of two models, which says nothing of their methods
    return Card(label, value, note, sure if pair["ahead"] else "doubt")
