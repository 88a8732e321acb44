"""The result in sentences: the strongest that is true.

A run is called best only if the paired test on the same patients, with Holm's correction over all pairs, finds it
above every other run that is no upper bound. `RULES` is the one table of what is said, and when.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fdamed.core.disclosure import SUPPRESSED
from fdamed.report.headline_facts import Facts, facts_of
from fdamed.report.headline_words import WORDS
from fdamed.report.study import Study


class _Words(dict[str, str]):
    """The words of a sentence, worked out when it asks for them."""

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self.facts = facts

    def __missing__(self, name: str) -> str:
        return WORDS[name](self.facts)


@dataclass(frozen=True)
class Rule:
    """A sentence, and when it is said: of each topic the first rule that holds."""

    topic: str
    name: str
    holds: Callable[[Facts], Any]
    sentence: str


def short(facts: Facts) -> bool:
    """Whether a larger study could separate what this one cannot."""
    return facts.tested and not facts.won and facts.errors is not None


RULES = (
    # The heading.
    Rule(
        "heading",
        "no_score",
        lambda f: not f.rivals,
        "No method can be compared: no run has an {metric} {place} ({why}).",
    ),
    Rule(
        "remedy",
        "suppressed",
        lambda f: not f.rivals and WORDS["why"](f).startswith(SUPPRESSED),
        "Every score is in clients/{clients}/scores/, which stays at the hospital. To have them here: more test images "
        "of the target (split.test; the study is trained again) or, if the images are public, privacy: public "
        "(nothing is trained again).",
    ),
    Rule(
        "heading",
        "only_run",
        lambda f: len(f.rivals) == 1,
        "{best} reaches an {metric} of {score} {place}; there is no other method to compare it with.",
    ),
    Rule(
        "heading",
        "best_everywhere",
        lambda f: f.elsewhere and f.winners == {f.best.run},
        "{best} is better than every other method at each of {targets}.",
    ),
    Rule(
        "heading", "not_everywhere", lambda f: f.elsewhere, "No method is better than all others at each of {targets}."
    ),
    Rule(
        "heading",
        "untested",
        lambda f: not f.tested,
        "No method can be called best {place}: the runs were not compared on the same patients.",
    ),
    Rule(
        "heading",
        "best_model",
        lambda f: f.won and f.one_seed,
        "The model of {best} is better than every other {place}, on {sample}; one seed cannot show "
        "whether its method is better.",
    ),
    Rule("heading", "winner", lambda f: f.won, "{best} is better than every other method {place}, on {sample}."),
    Rule(
        "heading",
        "tied_with_guessing",
        lambda f: not f.distinguished and f.guesses and len(f.guesses) == len(f.known),
        "No method can be distinguished from guessing, or from the others, {place} on {sample}.",
    ),
    Rule(
        "heading",
        "tied",
        lambda f: not f.distinguished,
        "No method can be distinguished from the others {place} on {sample}.",
    ),
    Rule(
        "heading",
        "leaders",
        lambda f: f.behind,
        "{best} leads {place}, but cannot be distinguished from {others} on {sample}.",
    ),
    Rule("heading", "no_leader", lambda f: True, "No method is better than all others {place} on {sample}."),
    # What supports it.
    Rule(
        "evidence", "of_the_winner", lambda f: f.won, "Its {metric} is {score}; over the runner-up, {second}: {lead}."
    ),
    Rule(
        "evidence",
        "of_the_leaders",
        lambda f: f.tested and f.behind,
        "The highest {metric} is {score}. Significantly below it, on the same patients: {behind}.",
    ),
    Rule("evidence", "highest", lambda f: len(f.rivals) > 1, "The highest mean {metric} is that of {best}: {score}."),
    Rule(
        "chance",
        "all_guess",
        lambda f: f.rivals and len(f.guesses) == len(f.known),
        "No run can be distinguished from guessing: every interval over patients and seeds reaches an {metric} of 0.5.",
    ),
    Rule(
        "chance",
        "some_guess",
        lambda f: f.guesses,
        "Not distinguished from guessing, an {metric} of 0.5, on these patients and seeds: {guesses}.",
    ),
    Rule(
        "compared",
        "some_untested",
        lambda f: f.tested and f.untested,
        "Not compared with {best}: {untested}.",
    ),
    Rule(
        "selected",
        "selected",
        lambda f: f.rivals and not f.view.plain,
        "Its value was selected on the test part: a new study must confirm it.",
    ),
    # What this study could have seen.
    Rule(
        "power",
        "smallest_difference",
        short,
        "The smallest difference that this study could have seen between {best} and {second} is {smallest} points "
        "(80% power, corrected for {pairs}{correlation}); the observed one is {points}.",
    ),
    Rule(
        "needed",
        "same_size",
        lambda f: short(f) and f.lead and abs(f.lead["points"]) >= f.smallest,
        "A study of this size would find a true difference of that size in 80% of cases: a second one may decide.",
    ),
    Rule(
        "needed",
        "patients_or_seeds",
        lambda f: short(f) and f.needed.patients and f.needed.seeds,
        "To see that would take about {patients} with the same seeds, or {seeds} with the same patients.",
    ),
    Rule(
        "needed",
        "patients",
        lambda f: short(f) and f.needed.patients,
        "To see that would take about {patients}; more seeds alone would not be enough.",
    ),
    Rule(
        "needed",
        "seeds",
        lambda f: short(f) and f.needed.seeds,
        "To see that would take about {seeds}; more patients alone would not be enough.",
    ),
    Rule("needed", "both", lambda f: short(f) and f.needed.both, "To see that would take about {both}."),
    Rule("needed", "nothing", short, "No study of a realistic size would see that."),
    # Did the other hospitals help?
    Rule(
        "help",
        "one_seed_helps",
        lambda f: f.one_seed and f.helper and f.alone and (f.above(f.helper, f.alone) or f.above(f.alone, f.helper)),
        "One seed cannot show whether the other hospitals help: the model of {helper} against that of {alone} is "
        "{gain}.",
    ),
    Rule(
        "help",
        "helps",
        lambda f: f.helper and f.alone and f.above(f.helper, f.alone),
        "The other hospitals help: {helper} is above training on the target’s own labels alone ({alone}) by {gain}.",
    ),
    Rule(
        "help",
        "does_not_help",
        lambda f: f.helper and f.alone and f.above(f.alone, f.helper),
        "The other hospitals do not help: {helper}, the best run with them, is below training on the target’s own "
        "labels alone ({alone}): {gain}.",
    ),
    Rule(
        "help",
        "help_unknown",
        lambda f: f.pair(f.helper, f.alone),
        "It is not clear whether the other hospitals help: {helper} against the target’s own labels alone ({alone}) is "
        "{gain}.",
    ),
    Rule(
        "control",
        "not_above_control",
        lambda f: f.tested and f.no_better,
        "Not significantly better than the control (in parentheses): {no_better}.",
    ),
    Rule(
        "ceiling",
        "ceiling_below",
        lambda f: f.rivals and f.over_ceiling,
        "{ceiling} trains on all of the target’s labels and is still below {over}: it is no upper bound here. Its "
        "training may not have converged, or the difference is noise.",
    ),
    Rule(
        "ceiling",
        "ceiling_above",
        lambda f: f.rivals and f.ceiling,
        "With all of the target’s labels ({ceiling}, an upper bound) the {metric} is {bound}{beaten}.",
    ),
)
"""Every sentence of the headline. No card, color or other sentence of the page may say more."""


def chosen(facts: Facts) -> list[Rule]:
    """The rules that apply: of each topic the first that holds."""
    out: dict[str, Rule] = {}
    for rule in RULES:
        if rule.topic not in out and rule.holds(facts):
            out[rule.topic] = rule
    return list(out.values())


def sentences(facts: Facts) -> list[str]:
    words = _Words(facts)
    return [rule.sentence.format_map(words) for rule in chosen(facts)]


def as_file(study: Study) -> dict[str, Any]:
    """Target -> the rule of its heading and all sentences: what other views of the study repeat."""
    every = {view.name: facts_of(study, view) for view in study.views}
    return {name: {"rule": chosen(facts)[0].name, "sentences": sentences(facts)} for name, facts in every.items()}
