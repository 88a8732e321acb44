"""How runs were judged and what they were given: the round that validation chooses, local steps, labeled images."""

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
