"""The result in sentences and cards: the strongest that is true.

A run is called best only if the paired test on the same patients, with Holm's correction over all pairs, finds it
above every other run that is no upper bound. `RULES` is the one table of what is said, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fdamed.evaluation import power
from fdamed.evaluation.intervals import counted, ends, interval, listed, megabytes, p_value, signed
from fdamed.evaluation.run_tables import ALL_TARGETS
from fdamed.report.audit import Audit, oriented, pairwise, visible
from fdamed.report.study import METRICS, Row, Study, View


@dataclass(frozen=True)
class Facts:
    """What is known about the runs of a view."""

    view: View
    main: str
    audit: Audit | None = None
    elsewhere: Mapping[str, Facts] = field(default_factory=dict)
    """Of the mean over all targets: target -> its facts."""

    @cached_property
    def known(self) -> list[Row]:
        return [row for row in self.view.ranked if row.scores[self.main].mean is not None]

    @cached_property
    def rivals(self) -> list[Row]:
        """The runs with a score, best first, without upper bounds."""
        return [row for row in self.known if not row.ceiling]

    @property
    def best(self) -> Row:
        return self.rivals[0]

    @property
    def second(self) -> Row:
        return self.rivals[1]

    @cached_property
    def ceiling(self) -> Row | None:
        return next((row for row in self.known if row.ceiling), None)

    @cached_property
    def alone(self) -> Row | None:
        """The target on its own labels: with its whole step, where there are several."""
        found = [row for row in self.rivals if row.alone]
        return next((row for row in found if row.whole_step), found[0] if found else None)

    @cached_property
    def helper(self) -> Row | None:
        """The best run that other hospitals take part in."""
        return next((row for row in self.rivals if not row.alone), None)

    def pair(self, first: Row | None, second: Row | None) -> dict[str, Any] | None:
        """The paired comparison of two runs, from the first; None if they were not compared."""
        return pairwise(self.audit, first.run, second.run, self.main) if first and second else None

    def above(self, first: Row, second: Row) -> bool:
        """Whether the first is significantly above the second."""
        return bool((pair := self.pair(first, second)) and pair["ahead"])

    @cached_property
    def pairs(self) -> list[Audit]:
        """All compared pairs of the main score: what Holm's correction is over."""
        return [pair for pair in (self.audit or {}).get("pairs", ()) if pair["metric"] == self.main]

    @cached_property
    def tested(self) -> bool:
        return len(self.rivals) > 1 and any(self.pair(self.best, row) for row in self.rivals[1:])

    @cached_property
    def leaders(self) -> list[Row]:
        """The run with the highest score, and all that are not significantly below it."""
        return [row for row in self.rivals if row is self.best or not self.above(self.best, row)]

    @cached_property
    def behind(self) -> list[Row]:
        return [row for row in self.rivals if row not in self.leaders]

    @cached_property
    def distinguished(self) -> bool:
        """Whether any two of the rivals differ significantly."""
        names = {row.run for row in self.rivals}
        ours = (pair for pair in self.pairs if {pair["first"], pair["second"]} <= names)
        return any(oriented(pair, pair["first"])["significant"] for pair in ours)

    @property
    def won(self) -> bool:
        return self.tested and len(self.leaders) == 1

    @cached_property
    def winners(self) -> set[str]:
        """Of the mean over all targets: the runs that win at a target; an empty name: at some target nobody does."""
        return {facts.best.run if facts.won else "" for facts in self.elsewhere.values()}

    @cached_property
    def lead(self) -> dict[str, Any] | None:
        """The best against the runner-up."""
        return self.pair(self.best, self.second) if len(self.rivals) > 1 else None

    @cached_property
    def errors(self) -> power.Errors | None:
        """The observed errors of that difference."""
        patients = (self.audit or {}).get("patients")
        return power.observed(self.lead, patients) if self.lead and "seeds_error" in self.lead and patients else None

    @property
    def smallest(self) -> float:
        """The smallest difference that could have been seen, in points."""
        return 100 * self.errors.smallest_difference(len(self.pairs)) if self.errors else 0.0

    @cached_property
    def needed(self) -> power.Needed:
        """What would show the observed lead."""
        none = power.Needed(None, None, None)
        return self.errors.needed(self.lead["points"] / 100, len(self.pairs)) if self.errors and self.lead else none

    @cached_property
    def no_better(self) -> list[str]:
        """The runs that are not significantly above their control, with its name."""
        by_name = {row.run: row for row in self.rivals}
        both = [(row, by_name[row.control]) for row in self.rivals if row.control in by_name]
        return [f"{row.run} ({control.run})" for row, control in both if not self.above(row, control)]

    @cached_property
    def over_ceiling(self) -> list[str]:
        top = self.ceiling
        return [r.run for r in self.rivals if top and r.height(self.main) > top.height(self.main)]

    def __getitem__(self, name: str) -> str:
        """The words of a sentence."""
        return _WORDS[name](self)

    def keys(self) -> Iterable[str]:
        return _WORDS


def _difference(pair: Mapping[str, Any] | None) -> str:
    """`+1.2 points (−0.3 to +2.7), Holm-adjusted p = 0.2`."""
    if not pair:
        return "not compared"
    return f"{signed(pair['points'])} points ({ends(pair, 1, sign='+')}), Holm-adjusted p {p_value(pair['p'])}"


def _sample(facts: Facts) -> str:
    patients, seeds = (facts.audit or {}).get("patients"), max(row.scores[facts.main].n for row in facts.rivals)
    return f"{counted(patients, 'patient') if patients else 'these patients'} and {counted(seeds, 'seed')}"


def _correlation(facts: Facts) -> str:
    """The observed correlation of the two runs on the same patients."""
    scores = (facts.audit or {}).get("scores", {}).get(facts.main, {})
    own = [scores.get(row.run, {}).get("patients") for row in (facts.best, facts.second)]
    if facts.errors is None or None in own:
        return ""
    found = power.correlation(own[0], own[1], facts.errors.patients)
    return "" if found is None else f", with their correlation of {found:.2f} on the same patients"


def _beaten(facts: Facts) -> str:
    """Which methods the upper bound is significantly above."""
    top = facts.ceiling
    if top is None or not any(facts.pair(top, row) for row in facts.rivals):
        return ""
    return f", significantly above {_names(row for row in facts.rivals if facts.above(top, row)) or 'no method'}"


def _rough(number: int, word: str) -> str:
    """Two significant digits of a number that is an extrapolation."""
    return counted(int(float(f"{number:.2g}")), word)


def _names(rows: Iterable[Row]) -> str:
    return listed([row.run for row in rows])


_WORDS: dict[str, Callable[[Facts], str]] = {
    "metric": lambda f: METRICS[f.main],
    "place": lambda f: "on average over all targets" if f.view.name == ALL_TARGETS else f"at {f.view.name}",
    "why": lambda f: next((row.why[f.main] for row in f.view.ranked if row.why.get(f.main)), "not run"),
    "best": lambda f: f.best.run,
    "second": lambda f: f.second.run,
    "score": lambda f: interval(f.best.scores[f.main]),
    "sample": _sample,
    "targets": lambda f: counted(len(f.elsewhere), "target"),
    "others": lambda f: _names(row for row in f.leaders if row is not f.best),
    "behind": lambda f: _names(f.behind),
    "untested": lambda f: _names(row for row in f.rivals[1:] if not f.pair(f.best, row)),
    "lead": lambda f: _difference(f.lead),
    "points": lambda f: f"{abs(f.lead['points']) if f.lead else 0.0:.1f}",
    "smallest": lambda f: visible(f.smallest),
    "correlation": _correlation,
    "pairs": lambda f: counted(len(f.pairs), "pair"),
    "patients": lambda f: _rough(f.needed.patients or 0, "patient"),
    "seeds": lambda f: _rough(f.needed.seeds or 0, "seed"),
    "both": lambda f: (
        f"{_rough((f.needed.both or (0, 0))[0], 'patient')} and {_rough((f.needed.both or (0, 0))[1], 'seed')}"
    ),
    "helper": lambda f: f.helper.run if f.helper else "",
    "alone": lambda f: f.alone.run if f.alone else "",
    "gain": lambda f: _difference(f.pair(f.helper, f.alone)),
    "no_better": lambda f: listed(f.no_better, 8),
    "ceiling": lambda f: f.ceiling.run if f.ceiling else "",
    "bound": lambda f: f"{f.ceiling.height(f.main) if f.ceiling else 0.0:.3f}",
    "beaten": _beaten,
    "over": lambda f: listed(f.over_ceiling),
}
"""What stands in the braces of a rule's sentence."""


@dataclass(frozen=True)
class Rule:
    """A sentence, and when it is said: of each topic the first rule that holds."""

    topic: str
    name: str
    holds: Callable[[Facts], Any]
    sentence: str


def _short(facts: Facts) -> bool:
    """Whether something cannot be told apart that a larger study could."""
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
    Rule("heading", "winner", lambda f: f.won, "{best} is better than every other method {place}, on {sample}."),
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
        "compared",
        "some_untested",
        lambda f: f.tested and f["untested"],
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
        _short,
        "The smallest difference that this study could have seen between {best} and {second} is {smallest} points "
        "(80% power, corrected for {pairs}{correlation}); the observed one is {points}.",
    ),
    Rule(
        "needed",
        "same_size",
        lambda f: _short(f) and f.lead and abs(f.lead["points"]) >= f.smallest,
        "A study of this size would find a true difference of that size in 80% of cases: a second one may decide.",
    ),
    Rule(
        "needed",
        "patients_or_seeds",
        lambda f: _short(f) and f.needed.patients and f.needed.seeds,
        "To see that would take about {patients} with the same seeds, or {seeds} with the same patients.",
    ),
    Rule(
        "needed",
        "patients",
        lambda f: _short(f) and f.needed.patients,
        "To see that would take about {patients}; more seeds alone would not do.",
    ),
    Rule(
        "needed",
        "seeds",
        lambda f: _short(f) and f.needed.seeds,
        "To see that would take about {seeds}; more patients alone would not do.",
    ),
    Rule("needed", "both", lambda f: _short(f) and f.needed.both, "To see that would take about {both}."),
    Rule("needed", "nothing", _short, "No study of a realistic size would see that."),
    # Did the other hospitals help?
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
        "Whether the other hospitals help cannot be told: {helper} against the target’s own labels alone ({alone}) is "
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
    return [rule.sentence.format_map(facts) for rule in chosen(facts)]


def facts_of(study: Study, view: View) -> Facts:
    by_target = {v.name: Facts(v, study.main, study.audits.get(v.name)) for v in study.views if v.name != ALL_TARGETS}
    return Facts(view, study.main, elsewhere=by_target) if view.name == ALL_TARGETS else by_target[view.name]


def as_file(study: Study) -> dict[str, Any]:
    """Target -> the rule of its heading and all sentences: what other views of the study repeat."""
    every = {view.name: facts_of(study, view) for view in study.views}
    return {name: {"rule": chosen(facts)[0].name, "sentences": sentences(facts)} for name, facts in every.items()}


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
    if _short(facts):
        out.append(
            Card("Smallest visible difference", f"{visible(facts.smallest)} points", f"in {name}, with 80% power")
        )
    if facts.pair(facts.helper, facts.alone) and facts.helper and facts.alone:
        out.append(_lead("With other hospitals", facts, facts.helper, facts.alone))
    if facts.ceiling is not None:
        gap = facts.ceiling.height(facts.main) - best.height(facts.main)
        note = f"in {name} from {best.run} to {facts.ceiling.run}, which trains on all of the target’s labels"
        out.append(
            Card("Gap to the upper bound", f"{gap:.3f}" if gap > 0 else "none", note, "" if gap > 0 else "doubt")
        )
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
    score = f"{name} {interval(best.scores[facts.main])}, {counted(best.scores[facts.main].n, 'seed')}"
    if rule in ("winner", "best_everywhere"):
        return Card("Best method", best.run, score, "good")
    if rule == "leaders":
        few = len(facts.leaders) <= 3
        value = _names(facts.leaders) if few else counted(len(facts.leaders), "run")
        return Card("Leaders", value, "not distinguished from the highest score on the same patients", "doubt")
    if rule == "only_run":
        return Card("Only method", best.run, score)
    return Card("Best method", "none", f"no lead is significant; highest mean {name}: {best.run}", "doubt")


def _lead(label: str, facts: Facts, first: Row, second: Row) -> Card:
    pair = facts.pair(first, second) or {}
    value = "significant" if pair["significant"] else "not significant"
    note = f"{METRICS[facts.main]} of {first.run} minus {second.run} on the same patients: {_difference(pair)}"
    return Card(label, value, note, "good" if pair["ahead"] else "doubt")
