"""What the hospitals insisted on, and what noise at the sources cost their patients, for the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup, escape

from fdamed.config.study import Config
from fdamed.core.run_record import Record

COLUMNS = ["run", "hospital", "mode", "epsilon", "delta", "epsilon of all its private runs together"]
HEAD = Markup(
    '<tr><th scope="col">Run</th><th scope="col">Hospital</th><th scope="col">Mode</th>'
    '<th scope="col" class="num">Epsilon</th><th scope="col" class="num">Delta</th>'
    '<th scope="col" class="num">Epsilon, all its private runs</th></tr>'
)
ROW = Markup(
    '<tr><th scope="row">{}</th><td>{}</td><td>{}</td><td class="num" data-value="{}">{:.2f}</td>'
    '<td class="num" data-value="{}">{:.1e}</td><td class="num" data-value="{}">{:.2f}</td></tr>'
)
MODES = {
    "reproducible": "reproducible: whoever knows the seed can take the noise off",
    "secure": "secure: noise that nobody can repeat",
}


def costs(records: Sequence[Record]) -> pd.DataFrame:
    """One row a private run and source: the largest epsilon of one training, and that of all trainings together."""
    private = [r for r in records if "privacy" in r.facts]
    found = [(r.run, p, r.facts["privacy"], c) for r in private for p, c in r.facts["privacy"]["sources"].items()]
    if not found:
        return pd.DataFrame(columns=COLUMNS)
    from fdamed.training.dp_sgd import epsilon

    together: dict[str, float] = {}
    for client in {p for _, p, _, _ in found}:
        spent = [(m, q, int(steps)) for _, p, _, cost in found if p == client for m, q, steps in cost["spent"]]
        together[client] = epsilon(spent, min(cost["delta"] for _, p, _, cost in found if p == client))
    rows: dict[tuple[str, str], tuple[Any, ...]] = {}
    for run, client, settings, cost in found:
        highest = max(cost["epsilon"], rows.get((run, client), (0.0,) * 4)[3])
        rows[run, client] = (run, client, settings["mode"], highest, cost["delta"], together[client])
    return pd.DataFrame(list(rows.values()), columns=COLUMNS)


def block(config: Config, frame: pd.DataFrame) -> Markup:
    """The floor in a sentence and, where there was noise, a table of what it cost."""
    floor = config.floor
    text = Markup(
        "<p>The floor: nothing that was computed on fewer than {} images, and no model of fewer than {} local steps a "
        "round, left a hospital.</p>"
    ).format(floor.images, floor.steps)
    if frame.empty:
        return text + Markup("<p>No noise was added at the sources: nothing here is differentially private.</p>")
    modes = "; ".join(MODES[m] for m in sorted(set(frame["mode"])))
    body = Markup("").join(
        ROW.format(run, client, mode, spent, spent, delta, delta, together, together)
        for run, client, mode, spent, delta, together in frame.itertuples(index=False, name=None)
    )
    return text + Markup(
        "<p>Differential privacy at the sources, for each patient (one training: the largest over targets and seeds; "
        "together: all trainings of this study, for whoever sees all models). {}. The target’s own images have no "
        'noise.</p><div class="scroll"><table class="sortable"><thead>{}</thead><tbody>{}</tbody></table></div>'
    ).format(escape(modes.capitalize()), HEAD, body)
