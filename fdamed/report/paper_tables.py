"""Published results beside ours: Tables 2, 3 and 4 of the healthcare paper, and the paper that a study names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from fdamed.config.datasets import DataSet
from fdamed.config.runs import Run
from fdamed.config.study import Config, Published
from fdamed.core.run_record import Record
from fdamed.evaluation.costs import Cost
from fdamed.evaluation.intervals import Interval, over_seeds

Summary = Mapping[tuple[str, str, str], Interval]
CLOSE = 2.5
"""Points within which a result counts as reproduced."""
CONTROLLED, CONTROL = ("gp", True), "target_only"
"""The last row with gradient projection (method, auxiliary heads), and the method of the rows that control it."""


@cache
def printed() -> dict[str, Any]:
    """The paper's figures."""
    content: dict[str, Any] = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
    return content


def paper_cohort(config: Config) -> str | None:
    """Which cohort of the paper the study's layout is, if any."""
    published = isinstance(config.data, DataSet) and config.data.paper_split == config.split.by
    return config.data.layout if published else None


def match(runs: Mapping[str, Run], method: str, auxiliary: bool) -> str | None:
    """The run that is a row of the paper: the one with most heads, the first of several."""
    found = [
        (name, r)
        for name, r in runs.items()
        if r.method == method and (r.auxiliary is not None) == auxiliary and r.then is None
    ]
    best = max(found, key=lambda item: len(item[1].auxiliary.heads) if item[1].auxiliary else 0, default=None)
    return best[0] if best else None


def table2(config: Config, runs: Mapping[str, Run], summary: Summary, target: str) -> dict[str, Any] | None:
    """The paper's rows with ours beside them where the layout is the paper's; a row without a score was not run."""
    cohort = paper_cohort(config)
    if cohort is None:
        return None
    rows = []
    for entry in printed()["rows"]:
        run = match(runs, entry["method"], entry["auxiliary"])
        ours = {m: summary.get((target, run, m)) if run else None for m in ("acc", "auc")}
        ran = any(s is not None and s.mean is not None for s in ours.values())
        rows.append({"name": entry["name"], "paper": entry[cohort], "run": run, "ours": ours, "ran": ran})
        if (entry["method"], entry["auxiliary"]) == CONTROLLED:
            rows += [_control(run, summary, target) for run, spec in runs.items() if spec.method == CONTROL]
    return {"source": printed()["source"], "rows": rows, "target": target, "cohort": cohort}


def _control(run: str, summary: Summary, target: str) -> dict[str, Any]:
    """A row that the paper lacks: what the target reaches alone."""
    ours = {m: summary.get((target, run, m)) for m in ("acc", "auc")}
    ran = any(s is not None and s.mean is not None for s in ours.values())
    return {"name": "not in the paper: a control of GP", "paper": None, "run": run, "ours": ours, "ran": ran}


def table3(rows: Sequence[Cost]) -> list[dict[str, Any]]:
    """Our costs with the paper's beside them, and the paper's rows that did not run here."""
    paper = {(p["method"], p["auxiliary"]): p for p in printed()["costs"]["rows"]}
    base = next(p["seconds"] for p in paper.values() if p["method"] == "finetune")
    seen = [(c.method, c.auxiliary) for c in rows]
    out: list[dict[str, Any]] = [
        {"cost": c, "run": c.run, "paper": paper.get(key) if seen.index(key) == i else None}
        for i, (c, key) in enumerate(zip(rows, seen, strict=True))
    ]
    out += [{"cost": None, "run": p["name"], "paper": p} for key, p in paper.items() if key not in seen]
    for row in out:
        row["paper_ratio"] = row["paper"]["seconds"] / base if row["paper"] else None
    return out


def table4(config: Config, options: Sequence[str]) -> list[tuple[str, Mapping[str, float]]]:
    """The paper's AUC by number of labeled target images, for a sweep over them on its cohort."""
    entry = printed()["labeled"]
    if paper_cohort(config) != entry["cohort"] or list(options) != ["labeled"]:
        return []
    return [(row["name"], row["auc"]) for row in entry["rows"]]


@dataclass(frozen=True)
class Cell:
    """One result of a paper and ours, in percent."""

    run: str
    target: str
    paper: float
    last: Interval

    @property
    def apart(self) -> float | None:
        """Last round minus the paper, in points."""
        return None if self.last.mean is None else self.last.mean - self.paper


def published_cells(published: Published, targets: Iterable[str], records: Iterable[Record]) -> list[Cell]:
    """Every result of the paper, run here or not, in the order of the configuration."""
    ours: dict[tuple[str, str], list[float]] = {}
    for record in records:
        scores = [row.get("test/acc") for row in record.rounds]
        last = [100 * float(score) for score in scores if score is not None][-1:]
        ours.setdefault((record.run, record.target), []).extend(last)
    out = []
    for run, value in published.values.items():
        each = value if isinstance(value, dict) else dict.fromkeys(targets, value)
        out += [Cell(run, target, paper, over_seeds(ours.get((run, target), []))) for target, paper in each.items()]
    return out


def within(found: Iterable[Cell], points: float = CLOSE) -> tuple[int, int]:
    """How many of our results are that close to the paper, and how many there are."""
    ran = [abs(c.apart) for c in found if c.apart is not None]
    return sum(a <= points for a in ran), len(ran)


def cell_table(found: list[Cell]) -> pd.DataFrame:
    """One row per result of the paper."""
    rows = [(c.run, c.target, c.paper, c.last.mean, c.last.half, c.last.n, c.apart) for c in found]
    return pd.DataFrame(rows, columns=["run", "target", "paper", "last", "last_half", "seeds", "apart"])
