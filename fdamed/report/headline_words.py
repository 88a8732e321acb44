"""What stands in the braces of the headline's sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fdamed.evaluation.comparison import power
from fdamed.evaluation.intervals import counted, ends, interval, listed, p_value, signed
from fdamed.evaluation.run_tables import ALL_TARGETS
from fdamed.report.audit import visible
from fdamed.report.headline_facts import Facts
from fdamed.report.study import METRICS, Row


def difference(pair: Mapping[str, Any] | None) -> str:
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
    return f", significantly above {names(row for row in facts.rivals if facts.above(top, row)) or 'no method'}"


def _rough(number: int, word: str) -> str:
    """Two significant digits of a number that is an extrapolation."""
    return counted(int(float(f"{number:.2g}")), word)


def score(facts: Facts, row: Row) -> str:
    """`0.643 (95% interval over patients and seeds 0.45 to 0.84)`; without an audit, over seeds alone."""
    found, seeds = facts.estimate(row), row.scores[facts.main]
    if found:
        low, high = max(0.0, found["low"]), min(1.0, found["high"])
        return f"{found['value']:.3f} (95% interval over patients and seeds {low:.2f} to {high:.2f})"
    return f"{interval(seeds)}{' over seeds' if seeds.half is not None else ''}"


def names(rows: Iterable[Row]) -> str:
    return listed([row.run for row in rows])


WORDS: dict[str, Callable[[Facts], str]] = {
    "metric": lambda f: METRICS[f.main],
    "place": lambda f: "on average over all targets" if f.view.name == ALL_TARGETS else f"at {f.view.name}",
    "why": lambda f: next((row.why[f.main] for row in f.view.ranked if row.why.get(f.main)), "not run"),
    "best": lambda f: f.best.run,
    "second": lambda f: f.second.run,
    "score": lambda f: score(f, f.best),
    "guesses": lambda f: names(f.guesses),
    "clients": lambda f: "*" if f.view.name == ALL_TARGETS else f.view.name,
    "sample": _sample,
    "targets": lambda f: counted(len(f.elsewhere), "target"),
    "others": lambda f: names(row for row in f.leaders if row is not f.best),
    "behind": lambda f: names(f.behind),
    "untested": lambda f: names(f.untested),
    "lead": lambda f: difference(f.lead),
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
    "gain": lambda f: difference(f.pair(f.helper, f.alone)),
    "no_better": lambda f: listed(f.no_better, 8),
    "ceiling": lambda f: f.ceiling.run if f.ceiling else "",
    "bound": lambda f: f"{f.ceiling.height(f.main) if f.ceiling else 0.0:.3f}",
    "beaten": _beaten,
    "over": lambda f: listed(f.over_ceiling),
}
"""Name in a sentence -> its text."""
