"""The protocol of a study: cohort sizes as they may be shown, the round that validation chooses, training budgets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fdamed.config.loader import catalog
from fdamed.config.policy_checks import training_images
from fdamed.config.privacy import local_steps
from fdamed.config.runs import MAIN, THEN
from fdamed.config.study import Config
from fdamed.core.disclosure import hides, small
from fdamed.core.run_record import Record, Row
from fdamed.evaluation.intervals import Interval
from fdamed.evaluation.run_tables import hidden, summary

CHOSEN = {"auc": "test/auc", "acc": "test/acc", "round": "round"}
SPLITS = ("train", "adapt", "val", "test")
TOTAL = "total"
HIDDEN = "hidden"
"""A total from which a small count could be computed."""


def chosen_round(rounds: Iterable[Row]) -> Row | None:
    """The first round with the highest val/auc, or val/acc where no round has one; never by the test split."""
    lines = list(rounds)
    for metric in ("val/auc", "val/acc"):
        known = [row for row in lines if row.get(metric) is not None and np.isfinite(row[metric])]
        if known:
            return max(known, key=lambda row: float(row[metric]))
    return None


def at_chosen_round(records: Iterable[Record], smallest: int) -> dict[tuple[str, str, str], Interval]:
    """(target, run, auc | acc | round) -> mean and interval over seeds of the test score at the chosen round."""
    rows = []
    for record in records:
        last_phase = record.rounds[record.rounds_before(record.phases[-1]["phase"]) :]
        row = None if hidden(record, smallest) else chosen_round(last_phase)
        if row is not None:
            head = (record.run, record.target, record.target, record.seed)
            rows += [(*head, name, row.get(key)) for name, key in CHOSEN.items()]
    frame = pd.DataFrame(rows, columns=["run", "target", "client", "seed", "metric", "value"])
    return summary(frame.astype({"value": "float64"}), list(CHOSEN))


@dataclass(frozen=True)
class Budget:
    """What one run may use at one target."""

    run: str
    target: str
    rounds: int
    """Of all phases."""
    then: str
    """The second phase in words, or empty."""
    labeled: str
    """Labeled images of the target that it trains on."""
    sources: Mapping[str, int]
    """Source -> optimizer steps in a round; empty: no source trains."""
    own: int | None
    """Optimizer steps in a round at the target; None: it does not train."""


def budgets(records: Iterable[Record], config: Config, cohort: Mapping[str, Any]) -> list[Budget]:
    """One entry per run and target, from the sizes of the cohort."""
    images = {client: entry["images"] for client, entry in cohort["clients"].items()}
    first = {(r.run, r.target): r for r in reversed(list(records))}
    return [_budget(record, config, images) for record in reversed(first.values())]


def _budget(record: Record, config: Config, images: Mapping[str, Mapping[str, int]]) -> Budget:
    smallest, target, known = config.privacy.smallest_cell, record.target, catalog()
    phases = config.phases(config.expanded_runs()[record.run])
    main, last = phases[MAIN], phases.get(THEN, phases[MAIN])
    entry, final = known[main.method], known[last.method]
    own = next(((r, n) for c, r, n in training_images(last, config, final, target, images) if c == target), None)
    sources = [e for e in training_images(main, config, entry, target, images) if e[0] != target]
    if entry.get("classical"):  # trains no client: no optimizer steps
        own, sources = None, []
    labeled = "0"
    if own and final["target_labels"]:
        shown = f"<{smallest}" if small(own[1], smallest) else str(own[1])
        labeled = f"{shown} (all)" if final["every_target_label"] else shown
    return Budget(
        run=record.run,
        target=target,
        rounds=int(record.facts["rounds"]),
        then=", ".join(f"the last {p['rounds']} of {p['method']}" for p in record.second),
        labeled=labeled,
        sources={client: local_steps(n, recipe.batch, recipe.epochs) for client, recipe, n in sources},
        own=local_steps(own[1], own[0].batch, own[0].epochs) if own else None,
    )


def table(entries: Iterable[Budget]) -> pd.DataFrame:
    """One row per target and run: rounds, labeled images, and steps per round at the sources and the target."""
    rows = [
        (b.target, b.run, b.rounds, b.labeled, sum(b.sources.values()), len(b.sources), b.own or 0) for b in entries
    ]
    columns = ["target", "run", "rounds", "labeled", "source_steps", "sources", "target_steps"]
    return pd.DataFrame(rows, columns=columns)


def sizes(cohort: dict[str, Any], smallest: int) -> pd.DataFrame:
    """One row per hospital and split, and one for its total: images, patients, positives, rate; text where hidden."""
    rows = []
    for client, content in cohort["clients"].items():
        cells = [_cells(content, split, smallest) for split in SPLITS]
        cells.append([_total(column) for column in zip(*cells, strict=True)])
        rows += [(client, split, *c, _rate(c[0], c[2])) for split, c in zip((*SPLITS, TOTAL), cells, strict=True)]
    return pd.DataFrame(rows, columns=["hospital", "split", "images", "patients", "positives", "rate"], dtype=object)


def _cells(content: dict[str, Any], split: str, smallest: int) -> list[int | str]:
    """Images, patients and positives; empty positives: several classes."""
    images, patients = (int(content[k].get(split, 0)) for k in ("images", "patients"))
    few, hidden = f"<{smallest}", small(images, smallest)
    counts: list[int | str] = [few if hidden else images, few if hidden or small(patients, smallest) else patients]
    if content["positives"] is None:
        return [*counts, ""]
    positives = int(content["positives"].get(split, 0))
    return [*counts, HIDDEN if hides(images, positives, smallest) else positives]


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
