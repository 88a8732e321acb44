"""Costs of a run: communication, time, and the compute cost of a round (Table 3 of the healthcare paper)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from fdamed.config.loader import catalog
from fdamed.config.runs import Run
from fdamed.config.study import Model
from fdamed.core.run_record import SERVER, Record
from fdamed.evaluation.intervals import Interval, over_seeds
from fdamed.evaluation.run_tables import ALL_TARGETS
from fdamed.models.head_sizes import CLASSES

PASSED_ON = "individual"
"""Kind of a model of one hospital, not averaged with others, that the server hands to another hospital."""
PRODUCTS = frozenset({"gp", "fedgp", "fedgp_auto"})
"""Methods that take the inner products <g_T, g_i>, <g_i, g_i> and <g_T, g_T> of every layer."""
WITH_TARGET = frozenset({"gp", "fedgp", "fedda", "fedgp_auto", "fedda_auto"})
"""Methods that combine the sources' updates and the target's."""
AVERAGES = frozenset({"fedavg", "fedgtst", "fediir", "finetune", "finetune_offline"})
AT_SOURCES = {"fedgtst": "the gradient of a gradient’s norm", "fediir": "gradients of the head"}
"""What else the sources work out in a round."""
YARDSTICK = "finetune"


def sent(records: Iterable[Record]) -> pd.DataFrame:
    """One row a target, run, hospital, receiver, step and kind: bytes and messages of a run, mean over its seeds.

    Rows of the server as the hospital are single hospitals' models that it passed on.
    """
    rows = []
    seeds: dict[tuple[str, str], int] = {}
    for record in records:
        where = (record.target, record.run)
        seeds[where] = seeds.get(where, 0) + 1
        rounds = max(1, len(record.rounds))
        rows += [
            (*where, record.method, s.client, s.to, s.step, s.kind, s.bytes, s.messages, s.bytes / 1e6 / rounds)
            for s in record.sent
            if s.client != SERVER or s.kind == PASSED_ON
        ]
    keys = ["target", "run", "method", "hospital", "to", "step", "kind"]
    frame = pd.DataFrame(rows, columns=[*keys, "bytes", "messages", "mb_per_round"])
    out = frame.groupby(keys, sort=False)[["bytes", "messages", "mb_per_round"]].sum().reset_index()
    # A seed in which a hospital sent nothing of a kind counts as zero: divide by the seeds, not by the rows.
    count = pd.Series([seeds[key] for key in zip(out["target"], out["run"], strict=True)], dtype="int64")
    for column in ("bytes", "messages", "mb_per_round"):
        out[column] = out[column] / count
    return out.assign(seeds=count).astype({"bytes": "float64", "messages": "float64", "mb_per_round": "float64"})


def by_run(records: Iterable[Record]) -> pd.DataFrame:
    """One row a target and run: MB out of all hospitals and into them in a run, MB out a round, mean over seeds."""
    rows = []
    for record in records:
        out = sum(pair[0] for pair in record.traffic.values()) / 1e6
        into = sum(pair[1] for pair in record.traffic.values()) / 1e6
        rows.append((record.target, record.run, record.method, out, into, out / max(1, len(record.rounds))))
    frame = pd.DataFrame(rows, columns=["target", "run", "method", "mb_out", "mb_in", "mb_out_per_round"])
    return frame.groupby(["target", "run", "method"], sort=False).mean().reset_index()


def bytes_by_round(records: Iterable[Record]) -> pd.DataFrame:
    """One row a target, run and round: MB sent so far, by hospitals and by the server, mean over seeds."""
    rows = []
    for record in records:
        total = 0
        for line in record.rounds:
            number = int(line["round"])
            total += sum(record.traffic.get(number, (0, 0)))
            rows.append((record.target, record.run, number, total / 1e6))
    keys = ["target", "run", "round"]
    frame = pd.DataFrame(rows, columns=[*keys, "mb_sent"]).groupby(keys, sort=False).mean().reset_index()
    return _with_mean_of_targets(frame, "mb_sent")


def on_cpu(record: Record) -> bool:
    """Whether one process did all the work on the CPU, so that its seconds do not depend on what else ran."""
    alone = record.facts.get("device") == "cpu" and (record.facts.get("train") or {}).get("transport") == "in_process"
    return alone and all("cpu" in row for row in record.timing)


def seconds_by_round(records: Sequence[Record]) -> pd.DataFrame:
    """One row a target, run and round: seconds until its end, of the CPU if all runs have them, mean over seeds."""
    column = "cpu" if all(on_cpu(r) for r in records) else "seconds"
    rows = []
    for record in records:
        total = 0.0
        for line in record.timing:
            total += float(line[column])
            rows.append((record.target, record.run, int(line["round"]), total))
    keys = ["target", "run", "round"]
    frame = pd.DataFrame(rows, columns=[*keys, "seconds"]).groupby(keys, sort=False).mean().reset_index()
    return _with_mean_of_targets(frame, "seconds").assign(clock="CPU" if column == "cpu" else "wall")


def _with_mean_of_targets(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    if frame["target"].nunique() < 2:
        return frame
    means = frame.groupby(["run", "round"], sort=False)[column].mean().reset_index()
    return pd.concat([means.assign(target=ALL_TARGETS), frame], ignore_index=True)


def score_against(
    rounds: pd.DataFrame, spent: pd.DataFrame, main: str, columns: Sequence[str], how: Literal["left", "inner"]
) -> pd.DataFrame:
    """Score of each evaluated round against what was spent until then; `rounds` as in `run_tables.rounds`."""
    judged = rounds[rounds["metric"] == f"test/{main}"]
    order = ["target", "run", "round", *columns, "metric", "mean", "low", "high", "seeds"]
    return judged.merge(spent, on=["target", "run", "round"], how=how)[order]


@dataclass(frozen=True)
class Cost:
    """One row of the table."""

    run: str
    method: str
    auxiliary: bool
    parameters: int
    """Of all networks, auxiliary heads and the method's own parts."""
    work: str
    """What a round does beyond training at the sources and averaging."""
    multiply_adds: int | None
    """At the server, a round; None where they are not counted."""
    seconds: Interval
    """A round, over seeds."""
    ratio: float | None
    """To the run that only fine-tunes."""


def head_parameters(names: Iterable[str], model: Model) -> int:
    """Parameters of the linear heads on the hidden feature."""
    chosen = list(names)
    if not chosen:
        return 0
    classes = CLASSES | {"race": len(model.races)}
    return sum((model.hidden + 1) * classes[name] for name in chosen)


def multiply_adds(method: str, sources: int, parameters: int) -> int | None:
    """Multiply-adds of the server's rule in a round, over `parameters` trainable numbers."""
    if method in AVERAGES:
        return sources * parameters
    if method not in WITH_TARGET:
        return None
    inner = 2 * sources + 1 if method in PRODUCTS else 0
    return (inner + sources + 1) * parameters


def seconds(record: Record) -> float | None:
    """Mean of a round without the first, which warms the machine up, and without a method's warm-up rounds.

    Of the first phase alone: the second is another method's.

    Seconds of the CPU where one process did the work on it: they do not depend on what else the machine does.
    """
    skip = max(1, int((record.facts.get("options") or {}).get("warmup") or 0))
    alone = record.facts.get("device") == "cpu" and record.facts["train"]["transport"] == "in_process"
    first = record.timing[: int(record.phases[0]["rounds"])]
    spent = [float(row["cpu" if alone else "seconds"]) for row in first]
    kept = spent[skip:] or spent
    return sum(kept) / len(kept) if kept else None


def compute_costs(
    records: Iterable[Record], runs: Mapping[str, Run], model: Model, fold: Mapping[str, str]
) -> list[Cost]:
    """One row a run, swept runs under the name `fold` gives them, in the order of the records."""
    grouped: dict[str, list[Record]] = {}
    for record in records:
        grouped.setdefault(fold.get(record.run, record.run), []).append(record)
    out = []
    for name, members in grouped.items():
        first = members[0]
        run = runs[first.run]
        by_seed: dict[int, list[float]] = {}
        for record in members:
            spent = seconds(record)
            if spent is not None:
                by_seed.setdefault(record.seed, []).append(spent)
        heads = run.auxiliary.heads if run.auxiliary else ()
        size = int(first.facts.get("parameters") or 0)
        sources = len(first.facts.get("sources") or ())
        extra = int(first.facts.get("extra_parameters") or 0)
        joined = bool({s.client for s in first.sent} - {SERVER, first.target})
        models = sources + 1 if joined else 1
        out.append(
            Cost(
                run=name,
                method=first.method,
                auxiliary=bool(heads),
                parameters=models * (size + head_parameters(heads, model)) + extra,
                work=_work(first, heads, len({str(r.facts.get("labeled")) for r in members}) > 1),
                multiply_adds=multiply_adds(first.method, _participants(first, sources), size),
                seconds=over_seeds(sum(v) / len(v) for v in by_seed.values()),
                ratio=None,
            )
        )
    return _with_ratio(out)


def _participants(record: Record, sources: int) -> int:
    """Sources that take part in a round, as `Network.begin` counts them."""
    share = float((record.facts.get("train") or {}).get("participation", 1.0))
    return min(sources, max(1, math.floor(share * sources + 0.5)))


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
    elif record.target in {s.client for s in record.sent} and len(record.phases) == 1:
        parts.append("train on the target’s unlabeled images")
    if heads:
        parts.append(f"auxiliary tasks at the sources ({', '.join(heads)})")
    if record.method in AT_SOURCES:
        parts.append(AT_SOURCES[record.method])
    if record.method in WITH_TARGET:
        parts.append("projection" if record.method in PRODUCTS else "weighted sum with the target’s update")
    work = " + ".join(parts) or "–"
    after = [f"{p['method']} on {images} labeled target images, {p['rounds']} rounds" for p in record.phases[1:]]
    return "; then ".join([work, *after])


def _with_ratio(rows: list[Cost]) -> list[Cost]:
    base = next((r.seconds.mean for r in rows if r.method == YARDSTICK and not r.auxiliary and r.seconds.mean), None)
    if base is None:
        return rows
    return [replace(r, ratio=None if r.seconds.mean is None else r.seconds.mean / base) for r in rows]
