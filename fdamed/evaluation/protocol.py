"""The protocol of a study: cohort sizes as they may be shown, the round that validation chooses, training budgets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fdamed.config.loader import catalog
from fdamed.config.policy_checks import training_images
from fdamed.config.privacy import local_steps
from fdamed.config.runs import MAIN, THEN
from fdamed.config.study import Config
from fdamed.core.disclosure import STEP, small
from fdamed.core.run_record import Record, Row
from fdamed.data.manifest import PARTS
from fdamed.evaluation.intervals import Interval
from fdamed.evaluation.run_tables import step_of, summary

CHOSEN = {"auc": "test/auc", "acc": "test/acc", "round": "round"}
TOTAL = "total"
HIDDEN = "hidden"
"""A total from which a small count could be computed."""
NOISE_MODES = {
    "reproducible": "reproducible: whoever knows the seed can remove the noise",
    "secure": "secure: noise from the operating system that nobody can repeat",
}
"""How noise for differential privacy is drawn."""


def chosen_round(rounds: Iterable[Row]) -> Row | None:
    """The first round with the highest val/auc, or val/acc where no round has one; never by the test part."""
    lines = list(rounds)
    for metric in ("val/auc", "val/acc"):
        known = [row for row in lines if row.get(metric) is not None and np.isfinite(row[metric])]
        if known:
            return max(known, key=lambda row: float(row[metric]))
    return None


def at_chosen_round(records: Iterable[Record]) -> dict[tuple[str, str, str], Interval]:
    """(target, run, auc | acc | round) -> mean and interval over seeds of the test score at the chosen round."""
    rows = []
    for record in records:
        last_phase = record.rounds[record.rounds_before(record.phases[-1]["phase"]) :]
        row = chosen_round(last_phase)
        if row is not None:
            head = (record.run, record.target, record.target, record.seed)
            rows += [(*head, name, row[key], step_of(record)) for name, key in CHOSEN.items() if key in row]
    frame = pd.DataFrame(rows, columns=["run", "target", "client", "seed", "metric", "value", STEP])
    return summary(frame.astype({"value": "float64"}), list(CHOSEN))


def budgets(records: Iterable[Record], config: Config, cohort: Mapping[str, Any]) -> pd.DataFrame:
    """One row per target and run: rounds of all phases, the second phase in words, labeled images of the target that
    the run trains on, optimizer steps per round at all sources, number of sources that train, steps at the target."""
    images = {client: entry["images"] for client, entry in cohort["clients"].items()}
    first = {(r.run, r.target): r for r in reversed(list(records))}
    rows = [_budget(record, config, images) for record in reversed(first.values())]
    columns = ["target", "run", "rounds", "then", "labeled", "source_steps", "sources", "target_steps"]
    return pd.DataFrame(rows, columns=columns)


def _budget(record: Record, config: Config, images: Mapping[str, Mapping[str, int]]) -> tuple[Any, ...]:
    target, known = record.target, catalog()
    phases = config.phases(config.as_trained(record.run, record.facts.get("tuned")))
    main, last = phases[MAIN], phases.get(THEN, phases[MAIN])
    entry, final = known[main.method], known[last.method]
    own = next(((r, n) for c, r, n in training_images(last, config, final, target, images) if c == target), None)
    sources = [e for e in training_images(main, config, entry, target, images) if e[0] != target]
    if entry.get("classical"):  # trains no client: no optimizer steps
        own, sources = None, []
    labeled = "0"
    if own and final["target_labels"]:
        labeled = f"{own[1]} (all)" if final["every_target_label"] else str(own[1])
    then = ", ".join(f"the last {p['rounds']} of {p['method']}" for p in record.second)
    steps = [local_steps(n, recipe) for _, recipe, n in sources]
    own_steps = local_steps(own[1], own[0]) if own else 0
    return target, record.run, int(record.facts["rounds"]), then, labeled, sum(steps), len(steps), own_steps


def sizes(cohort: dict[str, Any], smallest: int) -> pd.DataFrame:
    """One row per hospital and part, and one for its total: images, patients, positives, rate; text where hidden.

    `cohort`: as released.
    """
    rows = []
    for client, content in cohort["clients"].items():
        cells = [_cells(content, part, smallest) for part in PARTS]
        cells.append([_total(column) for column in zip(*cells, strict=True)])
        rows += [(client, part, *c, _rate(c[0], c[2])) for part, c in zip((*PARTS, TOTAL), cells, strict=True)]
    return pd.DataFrame(rows, columns=["hospital", "part", "images", "patients", "positives", "rate"], dtype=object)


def _cells(content: dict[str, Any], part: str, smallest: int) -> list[int | str]:
    """Images, patients and positives; empty positives: several classes."""
    few = {"images": f"<{smallest}", "patients": f"<{smallest}", "positives": HIDDEN}
    counts = [("" if content[k] is None else content[k].get(part, 0), hidden) for k, hidden in few.items()]
    return [hidden if n is None else n for n, hidden in counts]


def _total(values: Sequence[int | str]) -> int | str:
    if all(v == "" for v in values):
        return ""
    return HIDDEN if any(isinstance(v, str) for v in values) else sum(map(int, values))


def _rate(images: int | str, positives: int | str) -> float | str:
    if isinstance(images, str) or isinstance(positives, str):
        return "" if positives == "" else HIDDEN
    return round(positives / images, 4) if images else ""


def rejects(rejected: dict[str, int], smallest: int) -> list[tuple[str, str]]:
    """Reason and count, most frequent first; small counts as '<11'."""
    ordered = sorted(rejected.items(), key=lambda item: (-item[1], item[0]))
    return [(reason, f"<{smallest}" if small(n, smallest) else f"{n:,}") for reason, n in ordered]
