"""The headline: every rule of its wording, and cards that never say more than it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from fdamed.evaluation.intervals import Interval
from fdamed.evaluation.run_tables import ALL_TARGETS
from fdamed.report.headline import RULES, chosen, sentences
from fdamed.report.headline_cards import cards
from fdamed.report.headline_facts import Facts
from fdamed.report.study import NONE, Row, View

CONTROLS = {"half_step": "target_only"}
"""Runs whose method has another name."""


def row(index: int, run: str, auc: float | None, control: str = "", seeds: int = 3) -> Row:
    score = Interval(auc, 0.02 if seeds > 1 else None, seeds) if auc is not None else NONE
    why = {} if auc is not None else {"auc": "suppressed: fewer than 11 images of a class"}
    whole = run != "half_step"
    method = CONTROLS.get(run, run)
    return Row(index, run, method, {"auc": score, "acc": NONE}, why, NONE, None, 12.0, "", control, whole_step=whole)


def pair(first: str, second: str, value: float, p: float, **errors: float) -> dict[str, Any]:
    ends = {
        "low": value - 0.05,
        "high": value + 0.05,
        "seeds": 3,
        "patients": 0.02,
        "seeds_error": 0.001,
        "seeds_df": 2.0,
    }
    return {"metric": "auc", "first": first, "second": second, "value": value, "p_holm": p} | ends | errors


def facts(
    scores: dict[str, float | None],
    below: str = "",
    patients: int | None = 400,
    tested: bool = True,
    control: dict[str, str] | None = None,
    swept: bool = False,
    seeds: int = 3,
    **errors: float,
) -> Facts:
    """Runs with these AUCs; `below`: pairs such as `fedavg<gp` that are significant, all others are not."""
    sure = {frozenset(words.split("<")) for words in below.split()}
    rows = [row(i, run, auc, (control or {}).get(run, ""), seeds) for i, (run, auc) in enumerate(scores.items())]
    rows.sort(key=lambda r: -r.height("auc"))
    known = {run: auc for run, auc in scores.items() if auc is not None}
    pairs = [
        pair(a, b, known[a] - known[b], 0.001 if frozenset((a, b)) in sure else 0.6, **errors)
        for a, b in combinations(known, 2)
    ]
    own = {run: {"value": auc, "low": auc - 0.04, "high": auc + 0.04, "patients": 0.02} for run, auc in known.items()}
    audit = {"pairs": pairs, "patients": patients, "scores": {"auc": own}} if tested else None
    return Facts(View("NC", () if swept else rows, rows if swept else ()), "auc", audit)


WON = {"gp": 0.8, "fedavg": 0.7}
TIED = {"gp": 0.78, "fedda": 0.77, "fedavg": 0.76}


def everywhere(*winners: str) -> Facts:
    here = {f"T{i}": facts(WON, below="fedavg<gp" if name else "") for i, name in enumerate(winners)}
    rows = facts(WON).view.plain
    return Facts(View(ALL_TARGETS, rows, ()), "auc", elsewhere=here)


CASES: dict[str, tuple[Callable[[], Facts], str]] = {
    "no_score": (
        lambda: facts({"gp": None}),
        "No method can be compared: no run has an AUC at NC (suppressed: fewer than 11 images of a class).",
    ),
    "suppressed": (
        lambda: facts({"gp": None}),
        "Every score is in clients/NC/scores/, which stays at the hospital. To have them here: more test images of the "
        "target (split.test; the study is trained again) or, if the images are public, privacy: public (nothing is "
        "trained again).",
    ),
    "only_run": (
        lambda: facts({"gp": 0.8, "oracle": 0.9}),
        "gp reaches an AUC of 0.800 (95% interval over patients and seeds 0.76 to 0.84) at NC; there is no other "
        "method to compare it with.",
    ),
    "best_everywhere": (
        lambda: everywhere("gp", "gp"),
        "gp is better than every other method at each of 2 targets.",
    ),
    "not_everywhere": (
        lambda: everywhere("gp", ""),
        "No method is better than all others at each of 2 targets.",
    ),
    "untested": (
        lambda: facts(WON, tested=False),
        "No method can be called best at NC: the runs were not compared on the same patients.",
    ),
    "best_model": (
        lambda: facts(WON, below="fedavg<gp", seeds=1),
        "The model of gp is better than every other at NC, on 400 patients and 1 seed; one seed cannot show "
        "whether its method is better.",
    ),
    "winner": (
        lambda: facts(WON, below="fedavg<gp"),
        "gp is better than every other method at NC, on 400 patients and 3 seeds.",
    ),
    "tied_with_guessing": (
        lambda: facts({"gp": 0.53, "fedavg": 0.44}),
        "No method can be distinguished from guessing, or from the others, at NC on 400 patients and 3 seeds.",
    ),
    "tied": (
        lambda: facts(TIED),
        "No method can be distinguished from the others at NC on 400 patients and 3 seeds.",
    ),
    "leaders": (
        lambda: facts(TIED, below="fedavg<gp"),
        "gp leads at NC, but cannot be distinguished from fedda on 400 patients and 3 seeds.",
    ),
    "no_leader": (
        lambda: facts(TIED, below="fedavg<fedda"),
        "No method is better than all others at NC on 400 patients and 3 seeds.",
    ),
    "of_the_winner": (
        lambda: facts(WON, below="fedavg<gp"),
        "Its AUC is 0.800 (95% interval over patients and seeds 0.76 to 0.84); over the runner-up, fedavg: +10.0 "
        "points (+5.0 to +15.0), Holm-adjusted p = 0.001.",
    ),
    "of_the_leaders": (
        lambda: facts(TIED, below="fedavg<gp"),
        "The highest AUC is 0.780 (95% interval over patients and seeds 0.74 to 0.82). Significantly below it, on the "
        "same patients: fedavg.",
    ),
    "highest": (
        lambda: facts(TIED, tested=False),
        "The highest mean AUC is that of gp: 0.780 ± 0.020 over seeds.",
    ),
    "all_guess": (
        lambda: facts({"gp": 0.53, "fedavg": 0.44}),
        "No run can be distinguished from guessing: every interval over patients and seeds reaches an AUC of 0.5.",
    ),
    "some_guess": (
        lambda: facts({"gp": 0.78, "fedavg": 0.53, "oracle": 0.54}),
        "Not distinguished from guessing, an AUC of 0.5, on these patients and seeds: oracle and fedavg.",
    ),
    "some_untested": (
        lambda: _without_pair(facts(TIED), "gp", "fedavg"),
        "Not compared with gp: fedavg.",
    ),
    "selected": (
        lambda: facts(TIED, swept=True),
        "Its value was selected on the test part: a new study must confirm it.",
    ),
    # Two runs of two: z(0.975) + z(0.8) = 2.802 times 0.02 (and 0.001 over seeds) is 5.6 points.
    "smallest_difference": (
        lambda: facts({"gp": 0.78, "fedavg": 0.77}),
        "The smallest difference that this study could have seen between gp and fedavg is 5.6 points (80% power, "
        "corrected for 1 pair, with their correlation of 0.50 on the same patients); the observed one is 1.0.",
    ),
    # 4 points: (2.8 * 0.02 / 0.04)^2 is twice the patients; no number of seeds helps.
    "patients": (
        lambda: facts({"gp": 0.78, "fedavg": 0.74}),
        "To see that would take about 860 patients; more seeds alone would not be enough.",
    ),
    "seeds": (
        lambda: facts({"gp": 0.78, "fedavg": 0.70}, patients=400, seeds_error=0.03),
        "To see that would take about 9 seeds; more patients alone would not be enough.",
    ),
    "same_size": (
        lambda: facts({"gp": 0.78, "fedavg": 0.71}),
        "A study of this size would find a true difference of that size in 80% of cases: a second one may decide.",
    ),
    "patients_or_seeds": (
        lambda: facts({"gp": 0.78, "fedavg": 0.715}, seeds_error=0.006),
        "To see that would take about 440 patients with the same seeds, or 4 seeds with the same patients.",
    ),
    # (2.8 * 0.0233 / 0.01)^2 = 42.7, in steps of 10%: 45.3 times 400 patients and 3 seeds.
    "both": (
        lambda: facts({"gp": 0.78, "fedavg": 0.77}, seeds_error=0.012),
        "To see that would take about 18,000 patients and 140 seeds.",
    ),
    "nothing": (
        lambda: facts({"gp": 0.78, "fedavg": 0.78}),
        "No study of a realistic size would see that.",
    ),
    "one_seed_helps": (
        lambda: facts({"gp": 0.8, "target_only": 0.7}, below="target_only<gp", seeds=1),
        "One seed cannot show whether the other hospitals help: the model of gp against that of target_only is +10.0 "
        "points (+5.0 to +15.0), Holm-adjusted p = 0.001.",
    ),
    "helps": (
        lambda: facts({"gp": 0.8, "target_only": 0.7}, below="target_only<gp"),
        "The other hospitals help: gp is above training on the target’s own labels alone (target_only) by +10.0 points "
        "(+5.0 to +15.0), Holm-adjusted p = 0.001.",
    ),
    "does_not_help": (
        lambda: facts({"gp": 0.7, "target_only": 0.8}, below="gp<target_only"),
        "The other hospitals do not help: gp, the best run with them, is below training on the target’s own labels "
        "alone (target_only): −10.0 points (−15.0 to −5.0), Holm-adjusted p = 0.001.",
    ),
    "help_unknown": (
        lambda: facts({"gp": 0.7, "target_only": 0.8}),
        "It is not clear whether the other hospitals help: gp against the target’s own labels alone (target_only) is "
        "−10.0 points (−15.0 to −5.0), Holm-adjusted p = 0.6.",
    ),
    "not_above_control": (
        lambda: facts(
            {"gp": 0.8, "half_step": 0.79, "target_only": 0.6}, "target_only<gp", control={"gp": "half_step"}
        ),
        "Not significantly better than the control (in parentheses): gp (half_step).",
    ),
    "ceiling_below": (
        lambda: facts(TIED | {"oracle": 0.77}),
        "oracle trains on all of the target’s labels and is still below gp: it is no upper bound here. Its training "
        "may not have converged, or the difference is noise.",
    ),
    "ceiling_above": (
        lambda: facts(TIED | {"oracle": 0.9}, below="fedavg<oracle"),
        "With all of the target’s labels (oracle, an upper bound) the AUC is 0.900, significantly above fedavg.",
    ),
}


def _without_pair(known: Facts, *names: str) -> Facts:
    audit = dict(known.audit or {})
    audit["pairs"] = [p for p in audit["pairs"] if {p["first"], p["second"]} != set(names)]
    return Facts(known.view, known.main, audit)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_has_its_sentence(rule: Any) -> None:
    situation, sentence = CASES[rule.name]
    known = situation()
    assert rule in chosen(known)
    assert sentence in sentences(known)


def test_no_rule_has_another_ones_name() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES) == len(CASES)


@pytest.mark.parametrize("name", CASES)
def test_no_card_says_more_than_the_heading(name: str) -> None:
    known = CASES[name][0]()
    heading = chosen(known)[0].name
    shown = {card.label: card for card in cards(known)}
    if heading not in ("winner", "best_everywhere"):
        assert all(card.value == "none" for label, card in shown.items() if label == "Best method")
        assert not any(card.tone == "good" for card in list(shown.values())[:1])
    if known.one_seed:
        assert not any(card.tone == "good" for card in shown.values())
    for card in shown.values():
        assert (card.value == "not significant") <= (card.tone == "doubt")
        assert card.tone != "good" or card.value in ("significant", known.best.run)


def test_the_cards_of_a_winner_are_named_and_of_leaders_are_in_doubt() -> None:
    won, led = (
        {card.label: card for card in cards(facts(TIED, below=below))} for below in ("fedda<gp fedavg<gp", "fedavg<gp")
    )
    assert (won["Best method"].value, won["Best method"].tone) == ("gp", "good")
    assert "Smallest visible difference" not in won and won["Highest over second"].tone == "good"
    assert (led["Leaders"].value, led["Leaders"].tone) == ("gp and fedda", "doubt") and "Best method" not in led
    assert led["Smallest visible difference"].value == f"{facts(TIED).smallest:.1f} points"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("untested", "the runs were not compared on the same patients"),
        ("not_everywhere", "no run is best at every target"),
        ("no_leader", "the highest is not above all others"),
        ("tied", "no lead is significant"),
    ],
)
def test_the_card_without_a_best_method_says_why(name: str, why: str) -> None:
    first = cards(CASES[name][0]())[0]
    assert (first.value, first.tone) == ("none", "doubt") and first.note.startswith(f"{why}; highest mean AUC: gp")


def test_an_oracle_below_a_competitor_is_no_bound_on_the_cards_either() -> None:
    shown = {c.label: c for c in cards(facts(TIED | {"oracle": 0.765}))}
    assert "Gap to the upper bound" not in shown
    assert (shown["Upper bound"].value, shown["Upper bound"].tone) == ("none here", "doubt")
    assert shown["Upper bound"].note.endswith("is below gp and fedda")
    above = {c.label: c for c in cards(facts(TIED | {"oracle": 0.9}))}
    assert above["Gap to the upper bound"].value == "0.120" and "Upper bound" not in above


def test_the_smallest_visible_difference_is_that_of_the_pair_it_names() -> None:
    (card,) = [c for c in cards(facts(TIED)) if c.label == "Smallest visible difference"]
    assert "between gp and fedda" in card.note


def test_the_whole_step_of_the_target_is_the_yardstick_and_not_the_half() -> None:
    known = facts({"gp": 0.8, "half_step": 0.79, "target_only": 0.6})
    assert known.alone is not None and known.alone.run == "target_only"
    assert known.helper is not None and known.helper.run == "gp"
