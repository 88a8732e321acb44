"""What is known about the runs at a target, for the headline: who leads, what was tested, what could have been seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fdamed.evaluation.comparison import power
from fdamed.evaluation.metrics import GUESS
from fdamed.evaluation.run_tables import ALL_TARGETS
from fdamed.report.audit import Audit, oriented, pairwise
from fdamed.report.study import Row, Study, View


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

    @property
    def untested(self) -> list[Row]:
        """The runs that were not compared with the best."""
        return [row for row in self.rivals[1:] if not self.pair(self.best, row)]

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

    @property
    def one_seed(self) -> bool:
        """Whether the trained models can be compared, but not the methods."""
        return all(row.scores[self.main].n == 1 for row in self.rivals)

    @cached_property
    def winners(self) -> set[str]:
        """Of the mean over all targets: the runs that win at a target; an empty name: at some target nobody does."""
        return {facts.best.run if facts.won and not facts.one_seed else "" for facts in self.elsewhere.values()}

    @cached_property
    def lead(self) -> dict[str, Any] | None:
        """The best against the runner-up."""
        return self.pair(self.best, self.second) if len(self.rivals) > 1 else None

    @cached_property
    def errors(self) -> power.Errors | None:
        """The observed errors of that difference."""
        patients = (self.audit or {}).get("patients")
        return power.observed(self.lead, patients) if self.lead and "seeds_df" in self.lead and patients else None

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

    def estimate(self, row: Row) -> Mapping[str, Any] | None:
        """The main score of a run with its interval over patients and seeds; None if it was not audited."""
        found = (self.audit or {}).get("scores", {}).get(self.main, {}).get(row.run)
        return found if found and found.get("low") is not None else None

    @cached_property
    def guesses(self) -> list[Row]:
        """The runs whose AUC cannot be distinguished from guessing."""
        found = [(row, self.estimate(row)) for row in self.known if self.main == "auc"]
        return [row for row, score in found if score and score["low"] <= GUESS]

    @cached_property
    def over_ceiling(self) -> list[str]:
        top = self.ceiling
        return [r.run for r in self.rivals if top and r.height(self.main) > top.height(self.main)]


def facts_of(study: Study, view: View) -> Facts:
    by_target = {v.name: Facts(v, study.main, study.audits.get(v.name)) for v in study.views if v.name != ALL_TARGETS}
    return Facts(view, study.main, elsewhere=by_target) if view.name == ALL_TARGETS else by_target[view.name]
