"""Costs of a run: communication, time, and the compute cost of a round (Table 3 of the healthcare paper).

A remembered answer costs what computing it had taken, so that methods stay comparable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from fdamed.config.loader import catalog
from fdamed.config.model import HEAD_CLASSES
from fdamed.config.runs import Run
from fdamed.config.study import Model
from fdamed.core.run_record import SERVER, Record, computed
from fdamed.evaluation.intervals import Interval, over_seeds
from fdamed.evaluation.run_tables import with_all_targets

FORWARDED = "individual"
"""Kind of the model of a single hospital that the server forwards to another hospital."""
YARDSTICK = "finetune"


def sent(records: Sequence[Record]) -> pd.DataFrame:
    """One row per target, run, hospital, receiver, step and kind: bytes and messages of a run, mean over its seeds.

    Rows with the server as the hospital are models of single hospitals that it forwarded.
    """
    rows = [
        (r.target, r.run, r.method, s.client, s.to, s.step, s.kind, s.bytes, s.messages, s.bytes / 1e6 / _rounds(r))
        for r in records
        for s in r.sent
        if s.client != SERVER or s.kind == FORWARDED
    ]
    keys = ["target", "run", "method", "hospital", "to", "step", "kind"]
    numbers = ["bytes", "messages", "mb_per_round"]
    frame = pd.DataFrame(rows, columns=[*keys, *numbers]).astype(dict.fromkeys(numbers, "float64"))
    out = frame.groupby(keys, sort=False)[numbers].sum().reset_index()
    # A seed in which a hospital sent nothing of a kind counts as zero: divide by the seeds, not by the rows.
    seeds = Counter((r.target, r.run) for r in records)
    out["seeds"] = pd.Series([seeds[key] for key in zip(out["target"], out["run"], strict=True)], dtype="int64")
    return out.assign(**{name: out[name] / out["seeds"] for name in numbers})


def _rounds(record: Record) -> int:
    return max(1, len(record.rounds))


def by_run(records: Iterable[Record]) -> pd.DataFrame:
    """One row per target and run: MB sent by all hospitals and to them, MB sent per round, mean over seeds."""
    rows = []
    for r in records:
        out, into = (sum(side) / 1e6 for side in zip(*r.traffic.values(), strict=True)) if r.traffic else (0.0, 0.0)
        rows.append((r.target, r.run, r.method, out, into, out / _rounds(r)))
    keys = ["target", "run", "method"]
    frame = pd.DataFrame(rows, columns=[*keys, "mb_out", "mb_in", "mb_out_per_round"])
    return frame.groupby(keys, sort=False).mean().reset_index()


def on_cpu(record: Record) -> bool:
    """Whether one process did all the work on the CPU, so that its CPU seconds do not depend on other processes."""
    alone = record.facts.get("device") == "cpu" and (record.facts.get("train") or {}).get("transport") == "in_process"
    return alone and all("cpu" in row for row in record.timing)


def by_round(records: Sequence[Record]) -> pd.DataFrame:
    """One row per target, run and round: MB sent and seconds until its end, mean over seeds.

    The seconds are CPU seconds if all runs have them, else wall-clock seconds.
    """
    column = "cpu" if all(on_cpu(r) for r in records) else "seconds"
    rows = []
    for r in records:
        seconds = {int(line["round"]): computed(line, column) for line in r.timing}
        numbers = [int(line["round"]) for line in r.rounds]
        rows += [(r.target, r.run, r.seed, n, sum(r.traffic.get(n, (0,))), seconds.get(n)) for n in numbers]
    spent, keys = ["mb_sent", "seconds"], ["target", "run", "round"]
    frame = pd.DataFrame(rows, columns=["target", "run", "seed", "round", *spent])
    frame[spent] = frame.groupby(["target", "run", "seed"], sort=False)[spent].cumsum()
    frame = with_all_targets(frame.assign(mb_sent=frame["mb_sent"] / 1e6), ["run", "round", "seed"], spent)
    out = frame.groupby(keys, sort=False)[spent].mean().reset_index()
    return out.assign(clock="CPU" if column == "cpu" else "wall")


def score_against(rounds: pd.DataFrame, spent: pd.DataFrame, main: str, columns: Sequence[str]) -> pd.DataFrame:
    """Score of each evaluated round against what was spent until then; `rounds` as in `run_tables.rounds`."""
    evaluated = rounds[rounds["metric"] == f"test/{main}"].merge(spent, on=["target", "run", "round"])
    order = ["target", "run", "round", *columns, "metric", "mean", "low", "high", "seeds"]
    return evaluated.dropna(subset=list(columns))[order]


@dataclass(frozen=True)
class Cost:
    """One row of the table."""

    run: str
    method: str
    auxiliary: bool
    parameters: int
    """Of all networks, auxiliary heads and the method's own parts."""
    work: str
    """What a round does besides training at the sources and averaging."""
    seconds: Interval
    """Of a round, over seeds."""
    ratio: float | None
    """To the run that only fine-tunes."""


def head_parameters(names: Iterable[str], model: Model) -> int:
    """Parameters of the linear heads on the hidden feature."""
    classes = HEAD_CLASSES | {"race": len(model.races)}
    return sum((model.hidden + 1) * classes[name] for name in names)


def seconds(record: Record) -> float | None:
    """Mean of a round of the run's own method, in CPU seconds if one process did the work on the CPU.

    Without the run's first round, which includes start-up.
    """
    main = next(row for row in record.phases if row["phase"] == "main")
    before = record.rounds_before("main")
    rows = record.timing[before : before + int(main["rounds"])]
    spent = [computed(row, "cpu" if on_cpu(record) else "seconds") for row in rows]
    kept = spent[0 if before else 1 :] or spent
    return sum(kept) / len(kept) if kept else None


def compute_costs(
    records: Iterable[Record], runs: Mapping[str, Run], model: Model, fold: Mapping[str, str]
) -> list[Cost]:
    """One row per run, swept runs under the name that `fold` gives them, in the order of the records."""
    grouped: dict[str, list[Record]] = {}
    for record in records:
        grouped.setdefault(fold.get(record.run, record.run), []).append(record)
    spent = {name: _seconds_over_seeds(members) for name, members in grouped.items()}
    plain = {n: m[0].method for n, m in grouped.items() if not runs[m[0].run].auxiliary}
    base = next((spent[n].mean for n, method in plain.items() if method == YARDSTICK and spent[n].mean), None)
    out = []
    for name, members in grouped.items():
        first, mean = members[0], spent[name].mean
        auxiliary = runs[first.run].auxiliary
        heads = auxiliary.heads if auxiliary else ()
        size, sources = int(first.facts.get("parameters") or 0), len(first.facts.get("sources") or ())
        joined = bool({s.client for s in first.sent} - {SERVER, first.target})
        models = sources + 1 if joined else 1
        extra = int(first.facts.get("extra_parameters") or 0)
        if auxiliary and not auxiliary.share and joined:  # shared heads are a part of the network
            extra += sources * head_parameters(heads, model)
        out.append(
            Cost(
                run=name,
                method=first.method,
                auxiliary=bool(heads),
                parameters=models * size + extra,
                work=_work(first, heads, len({str(r.facts.get("labeled")) for r in members}) > 1),
                seconds=spent[name],
                ratio=None if base is None or mean is None else mean / base,
            )
        )
    return out


def _seconds_over_seeds(records: Sequence[Record]) -> Interval:
    """Seconds of a round: the mean over targets and swept values within a seed, then over seeds."""
    frame = pd.Series([seconds(r) for r in records], index=[r.seed for r in records], dtype="float64")
    return over_seeds(frame.groupby(level=0, sort=False).mean())


def _work(record: Record, heads: tuple[str, ...], several: bool) -> str:
    """The paper's column `operations with extra time`."""
    method = catalog().get(record.method, {})
    images = "n" if several else record.facts.get("labeled")
    parts = []
    if method.get("classical"):
        return "pool the features of all hospitals, align, classify"
    if method.get("every_target_label"):
        parts.append("train on all labels of the target")
    elif method.get("target_labels"):
        parts.append(f"fine-tune on {images} labeled target images")
    elif record.target in {s.client for s in record.sent} and not record.second:
        parts.append("train on the target’s unlabeled images")
    if heads:
        parts.append(f"auxiliary tasks at the sources ({', '.join(heads)})")
    server = {"projection": "projection", "sum": "weighted sum with the target’s update"}
    parts += filter(None, (method.get("work"), server.get(method.get("rule", ""))))
    work = " + ".join(parts) or "–"
    after = [f"{p['method']} on {images} labeled target images, {p['rounds']} rounds" for p in record.second]
    return "; then ".join([work, *after])
