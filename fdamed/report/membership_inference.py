"""Whether models give away who trained them, for the report: a row a run and hospital that had a part in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.evaluation.membership_inference import GATE, RATES

Told = Sequence[Mapping[str, Any]]
"""What each hospital's membership/{client}.json holds."""
ATTACKS = ("loss", "calibrated")
ENDS = ("value", "low", "high")
SCORES = ("auc", *RATES)
COLUMNS = ["hospital", "target", "run", "attack", *(f"{s}_{e}" if e != "value" else s for s in SCORES for e in ENDS)]


def frame(told: Told) -> pd.DataFrame:
    """One row a hospital, target, run and attack; a share that stands for few patients has only an upper end."""
    rows = []
    for one in told:
        for target, found in one["targets"].items():
            for run, attacks in found["runs"].items():
                for attack in ATTACKS:
                    if attacks[attack]:
                        cells = [_ends(attacks[attack][s])[e] for s in SCORES for e in range(3)]
                        rows.append((one["client"], target, run, attack, *cells))
    return pd.DataFrame(rows, columns=COLUMNS)


def _ends(told: Mapping[str, float] | None) -> tuple[float | None, float | None, float | None]:
    if told is None:
        return None, None, None
    return (None, None, told["below"]) if "below" in told else (told["value"], told["low"], told["high"])


def block(told: Told) -> Markup:
    """A sentence that says what the numbers mean, and the table; nothing where nobody was asked."""
    rows = [
        _row(one, target, run, attacks)
        for one in told
        for target, found in one["targets"].items()
        for run, attacks in found["runs"].items()
    ]
    if not rows:
        return Markup("")
    rows += [_row(one, "", "untrained", {"loss": one["untrained"], "calibrated": None}) for one in told]
    above = _above(told)
    verdict = (
        f"Above {GATE:.2f}, with the whole interval above the untrained network’s AUC: {', '.join(above)}."
        if above
        else f"None is above {GATE:.2f} with its whole interval above the untrained network’s AUC."
    )
    head = ("Hospital", "Target", "Run", "AUC", "AUC, calibrated", "Found at 1 %", "Found at 0.1 %")
    return Markup(
        "<h3>Do the models give away who trained them?</h3>"
        "<p>Each hospital tried to tell its patients who were trained on from those of its test split, by the loss of "
        "their images, within their class, under each model it had a part in; <i>calibrated</i>: less the loss under "
        "models of this study in which it had none. AUC 0.5: members cannot be told by this; above {}, and above the "
        "<i>untrained</i> network, which knows nobody: it should not leave like this. "
        "Found: share of the members who are recognized where 1 or 0.1 % of the others are wrongly taken for members; "
        "a dot: too few patients to see such a rate. 95 % intervals over patients and seeds. {} A stronger attack may "
        "find more; only noise gives a bound.</p>"
        '<div class="scroll"><table class="sortable"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
    ).format(
        f"{GATE:.2f}",
        verdict,
        Markup("").join(Markup('<th scope="col"><button type="button">{}</button></th>').format(h) for h in head),
        Markup("").join(rows),
    )


def _above(told: Told) -> list[str]:
    """Runs and hospitals beyond the gate by either attack."""
    return [
        f"{run} at {one['client']}" + (f" (target {target})" if len(one["targets"]) > 1 else "")
        for one in told
        for target, found in one["targets"].items()
        for run, attacks in found["runs"].items()
        if any(_tells(attacks[k], one["untrained"]) for k in ATTACKS)
    ]


def _tells(attack: Mapping[str, Any] | None, untrained: Mapping[str, Any] | None) -> bool:
    """Whether an attack surely finds more than chance, and than what sets these patients apart without any training."""
    if not attack or not attack["auc"]:
        return False
    floor = max(0.5, untrained["auc"]["value"] if untrained and untrained["auc"] else 0.5)
    return bool(attack["auc"]["value"] > GATE and attack["auc"]["low"] > floor)


def _row(one: Mapping[str, Any], target: str, run: str, attacks: Mapping[str, Any]) -> Markup:
    plain, calibrated = attacks["loss"] or {}, attacks["calibrated"] or {}
    strongest = calibrated or plain
    cells = [plain.get("auc"), calibrated.get("auc"), *(strongest.get(name) for name in RATES)]
    names = Markup('<td>{}</td><td>{}</td><th scope="row">{}</th>').format(one["client"], target, run)
    return Markup("<tr>") + names + Markup("").join(_cell(c) for c in cells) + Markup("</tr>")


def _cell(told: Mapping[str, float] | None) -> Markup:
    if not told:
        return Markup('<td class="num none" data-value="">·</td>')
    if "below" in told:
        return Markup('<td class="num" data-value="{}">below {:.3f}</td>').format(told["below"], told["below"])
    return Markup('<td class="num" data-value="{}">{:.3f}<small class="below">{:.2f} to {:.2f}</small></td>').format(
        told["value"], told["value"], told["low"], told["high"]
    )
