"""The protocol of a study: cohort sizes as they may be shown, the round that validation chooses, training budgets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fdamed.config.loader import catalog
from fdamed.config.study import Config, Recipe
from fdamed.core.disclosure import small
from fdamed.core.run_record import SERVER, Record, Row
from fdamed.evaluation.intervals import Interval
from fdamed.evaluation.run_tables import hidden, summary

CHOSEN = ("auc", "acc", "round")
SPLITS = ("train", "adapt", "val", "test")
TOTAL = "total"
HIDDEN = "hidden"
"""A total that would give a small count away by subtraction."""


def chosen_round(rounds: Iterable[Row]) -> Row | None:
    """The first round with the highest val/auc, or val/acc where no round has one; the test split is not looked at."""
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
        if hidden(record, smallest):
            continue
        row = chosen_round(record.rounds[sum(int(p["rounds"]) for p in record.phases[:-1]) :])
        if row is None:
            continue
        found = {"auc": row.get("test/auc"), "acc": row.get("test/acc"), "round": row["round"]}
        head = (record.run, record.target, record.target, record.seed)
        rows += [(*head, metric, np.nan if v is None else float(v)) for metric, v in found.items()]
    frame = pd.DataFrame(rows, columns=["run", "target", "client", "seed", "metric", "value"])
    return summary(frame.astype({"value": "float64"}), CHOSEN)


def steps(images: int, recipe: Recipe) -> int:
    """Optimizer steps of one round on so many images; a last batch of one is left out, as `train.batches` does."""
    whole, rest = divmod(images, recipe.batch)
    return recipe.epochs * (whole + (rest > 1 or images == 1))


@dataclass(frozen=True)
class Budget:
    """What one run may use at one target."""

    run: str
    target: str
    rounds: int
    """Of all phases."""
    then: str
    """The second phase in words; empty where there is none."""
    labeled: str
    """Labeled images of the target that it trains on."""
    sources: Mapping[str, int]
    """Source -> optimizer steps a round; empty: no source trains."""
    own: int | None
    """Optimizer steps a round at the target; None: it does not train."""


def budgets(records: Iterable[Record], config: Config, cohort: Mapping[str, Any]) -> list[Budget]:
    """One entry a run and target, from the sizes of the cohort and from who sent anything."""
    out: dict[tuple[str, str], Budget] = {}
    known, smallest, runs = catalog(), config.privacy.smallest_cell, config.expanded_runs()
    for record in records:
        if (record.run, record.target) in out:
            continue
        sizes = {p: {k: int(v) for k, v in c["images"].items()} for p, c in cohort["clients"].items()}
        methods = [known.get(p["method"], {}) for p in record.phases]
        labels, every = (any(m.get(k) for m in methods) for k in ("target_labels", "every_target_label"))
        learns = not methods[0].get("classical")  # classical rows train no hospital: no optimizer steps
        senders = {s.client for s in record.sent} - {SERVER}
        whole = {p: c.get("train", 0) + c.get("adapt", 0) for p, c in sizes.items()}
        few = _few(record.facts.get("labeled") or config.split.labeled, sizes[record.target].get("adapt", 0))
        images = few if labels and not every else whole[record.target]
        trains = labels or record.target in senders
        first, last = (config.train_of(config.phases(runs[record.run])[i]) for i in (0, -1))
        recipe = last.source if every else last.target
        shown = f"<{smallest}" if small(images, smallest) else str(images)
        out[record.run, record.target] = Budget(
            run=record.run,
            target=record.target,
            rounds=int(record.facts["rounds"]),
            then=", ".join(f"the last {p['rounds']} of {p['method']}" for p in record.phases[1:]),
            labeled="0" if not labels else f"{shown} (all)" if every else shown,
            sources={p: steps(n, first.source) for p, n in whole.items() if learns and p in senders - {record.target}},
            own=steps(images, recipe) if learns and trains else None,
        )
    return list(out.values())


def _few(asked: float | str, there: int) -> int:
    """Labeled images that are used of those that are there; a share below 1 was taken when they were drawn."""
    return there if isinstance(asked, str) or asked < 1 else min(int(asked), there)


def table(entries: Iterable[Budget]) -> pd.DataFrame:
    """One row a target and run: rounds, labeled images, steps a round at the sources and the target, in all."""
    rows = [
        (b.target, b.run, b.rounds, b.labeled, sum(b.sources.values()), len(b.sources), b.own or 0) for b in entries
    ]
    columns = ["target", "run", "rounds", "labeled", "source_steps", "sources", "target_steps"]
    return pd.DataFrame(rows, columns=columns)


def sizes(cohort: dict[str, Any], smallest: int) -> pd.DataFrame:
    """One row a hospital and split, and one for its total: images, patients, positives, rate; text where hidden."""
    rows = []
    for client, content in cohort["clients"].items():
        cells = [_cells(content, split, smallest) for split in SPLITS]
        rows += [(client, split, *cell) for split, cell in zip(SPLITS, cells, strict=True)]
        totals = [_total([cell[i] for cell in cells]) for i in range(3)]
        rows.append((client, TOTAL, *totals, _rate(totals[0], totals[2])))
    return pd.DataFrame(rows, columns=["hospital", "split", "images", "patients", "positives", "rate"], dtype=object)


def _cells(content: dict[str, Any], split: str, smallest: int) -> tuple[int | str, int | str, int | str, float | str]:
    images, patients = (int(content[k].get(split, 0)) for k in ("images", "patients"))
    few = f"<{smallest}"
    shown_images: int | str = few if small(images, smallest) else images
    shown_patients: int | str = few if small(patients, smallest) or small(images, smallest) else patients
    if content["positives"] is None:  # several classes
        return shown_images, shown_patients, "", ""
    positives = int(content["positives"].get(split, 0))
    # The negatives are images minus positives: either small count hides the positives.
    bare = small(positives, smallest) or small(images - positives, smallest) or small(images, smallest)
    shown_positives: int | str = HIDDEN if bare else positives
    return shown_images, shown_patients, shown_positives, _rate(shown_images, shown_positives)


def _total(values: list[int | str | float]) -> int | str:
    if all(v == "" for v in values):
        return ""
    return HIDDEN if any(isinstance(v, str) for v in values) else sum(int(v) for v in values)


def _rate(images: int | str, positives: int | str) -> float | str:
    if isinstance(images, str) or isinstance(positives, str):
        return "" if positives == "" else HIDDEN
    return round(positives / images, 4) if images else ""


def rejects(rejected: dict[str, int], smallest: int) -> list[tuple[str, str]]:
    """Reason and count, most frequent first; small counts as '<11'."""
    ordered = sorted(rejected.items(), key=lambda item: (-item[1], item[0]))
    return [(reason, f"<{smallest}" if small(n, smallest) else f"{n:,}") for reason, n in ordered]
