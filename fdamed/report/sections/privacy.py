"""Privacy budget: the privacy minimum, and epsilon of runs with differential privacy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from fdamed.core.run_record import Record
from fdamed.evaluation.protocol import NOISE_MODES
from fdamed.report.section import Section
from fdamed.report.study import Study

COLUMNS = ["run", "hospital", "mode", "epsilon", "delta", "epsilon of all its private runs together"]


def costs(records: Sequence[Record]) -> pd.DataFrame:
    """One row per private run and source: the largest epsilon of one training, and that of all trainings together."""
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


def tables(study: Study) -> dict[str, pd.DataFrame]:
    frame = costs(study.records)
    return {} if frame.empty else {"privacy": frame}


def context(study: Study) -> dict[str, Any]:
    frame = costs(study.records)
    modes = "; ".join(NOISE_MODES[m] for m in sorted(set(frame["mode"])))
    return {"minimum": study.config.minimum, "rows": list(frame.itertuples(index=False, name=None)), "modes": modes}


SECTION = Section(86, "Privacy budget", tables=tables, context=context)
