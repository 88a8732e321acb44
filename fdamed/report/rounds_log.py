"""What happened in the rounds besides scores: hospitals left out, rounds lost, how much each source counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.core.errors import FdamedError
from fdamed.core.files import read_lines
from fdamed.core.run_record import SERVER, Record
from fdamed.evaluation.run_tables import ALL_TARGETS
from fdamed.report.svg import Line, curves, dash

COLUMNS = ["run", "target", "seed", "round", "hospital", "step", "reason"]
PREFIXES = ("weight", "beta")
"""Notes `weight/{source}` and `beta/{source}` are how much a method listens to a source."""
PLOTS = 8
ROUNDS = 12
"""Numbers of rounds that are written out."""
Group = dict[str, Any]


def absences(runs: Path, records: Iterable[Record]) -> pd.DataFrame:
    """One row each time a hospital gave no usable answer."""
    rows = []
    for record in records:
        path = runs / record.run / record.target / str(record.seed) / "absences.jsonl"
        if not path.is_file():
            continue
        try:
            for line in read_lines(path):
                head = (record.run, record.target, record.seed, int(line["round"]))
                rows.append((*head, str(line["client"]), str(line["step"]), str(line["why"])))
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError):
            where = "/".join(path.parts[-5:])
            fix = "Delete the run's folder and start again; the run is trained anew."
            raise FdamedError("the list of absences is not readable", where, fix) from None
    return pd.DataFrame(rows, columns=COLUMNS)


def left_out(frame: pd.DataFrame) -> list[Group]:
    """One line a run, target, hospital and reason, most frequent first."""
    out = []
    for (run, target, hospital, reason), part in frame.groupby(["run", "target", "hospital", "reason"], sort=False):
        rounds = sorted(set(part["round"]))
        shown = ", ".join(map(str, rounds[:ROUNDS])) + (
            f" and {len(rounds) - ROUNDS} more" if len(rounds) > ROUNDS else ""
        )
        seeds = ", ".join(map(str, sorted(set(part["seed"]))))
        line = {"run": run, "target": target, "hospital": hospital, "reason": reason}
        out.append(line | {"times": len(part), "rounds": shown, "seeds": seeds})
    return sorted(out, key=lambda line: -line["times"])


def remarks(frame: pd.DataFrame, records: Sequence[Record]) -> dict[tuple[str, str], str]:
    """(target, run) -> what the headline must say of it, over all seeds."""
    missed, lost = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for target, run in zip(frame["target"], frame["run"], strict=True):
        missed.update([(str(target), str(run)), (ALL_TARGETS, str(run))])
    for record in records:
        for place in (record.target, ALL_TARGETS):
            lost[place, record.run] += sum(1 for row in record.rounds if row.get("lost"))
    out: dict[tuple[str, str], list[str]] = {}
    for record in records:
        if any(sent.kind == "features" and sent.client != SERVER for sent in record.sent):
            for place in (record.target, ALL_TARGETS):
                out.setdefault((place, record.run), ["features of patients left their hospitals"])
    for counts, what, done in ((missed, "answer", "left out"), (lost, "round", "lost")):
        for key, n in counts.items():
            if n:
                out.setdefault(key, []).append(f"{n} {what}{'s' if n > 1 else ''} {done}")
    return {key: ", ".join(parts) for key, parts in out.items()}


def weights(records: Sequence[Record]) -> pd.DataFrame:
    """One row a run, target, kind of weight, source and round: mean over seeds."""
    rows = [
        (r.run, r.target, *key.split("/", 1), int(row["round"]), float(value))
        for r in records
        for row in r.rounds
        for key, value in row.items()
        if key.partition("/")[0] in PREFIXES and key.partition("/")[2] and value is not None
    ]
    keys = ["run", "target", "kind", "source", "round"]
    frame = pd.DataFrame(rows, columns=[*keys, "value"]).astype({"round": "int64", "value": "float64"})
    return frame.groupby(keys, sort=False)["value"].mean().reset_index()


def weight_plots(frame: pd.DataFrame) -> tuple[list[Group], int]:
    """A drawing a run, target and kind, and how many more there are."""
    groups = list(frame.groupby(["run", "target", "kind"], sort=False))
    out = []
    for (run, target, kind), part in groups[:PLOTS]:
        lines = weight_lines(part)
        title = f"{run}, target {target}"
        drawn: Markup = curves(lines, f"{kind} of each source by round: {title}", str(kind), share=False)
        names = [{"index": line.index, "name": line.name, "dash": dash(line.index)} for line in lines]
        out.append({"title": title, "drawing": drawn, "legend": names})
    return out, max(0, len(groups) - PLOTS)


def weight_lines(part: pd.DataFrame) -> list[Line]:
    """A curve a source."""
    out = []
    for i, (source, values) in enumerate(part.groupby("source", sort=True)):
        ordered = values.sort_values("round")
        none: list[float | None] = [None] * len(ordered)
        out.append(Line(i, str(source), list(ordered["round"]), list(ordered["value"]), none, none))
    return out
