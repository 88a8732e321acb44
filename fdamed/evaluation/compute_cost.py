"""What a round costs, as Table 3 of the healthcare paper has it: parameters, extra work, seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fdamed.config.loader import catalog
from fdamed.config.runs import Run
from fdamed.config.study import Model
from fdamed.core.run_record import SERVER, Record
from fdamed.evaluation.intervals import Interval, over_seeds
from fdamed.models.head_sizes import CLASSES

PRODUCTS = frozenset({"gp", "fedgp", "fedgp_auto"})
"""Methods that take the inner products <g_T, g_i>, <g_i, g_i> and <g_T, g_T> of every layer."""
WITH_TARGET = frozenset({"gp", "fedgp", "fedda", "fedgp_auto", "fedda_auto"})
"""Methods that combine the sources' updates and the target's."""
AVERAGES = frozenset({"fedavg", "fedgtst", "fediir", "finetune", "finetune_offline"})
AT_SOURCES = {"fedgtst": "the gradient of a gradient’s norm", "fediir": "gradients of the head"}
"""What else the sources work out in a round."""
YARDSTICK = "finetune"


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


def costs(records: Iterable[Record], runs: Mapping[str, Run], model: Model, fold: Mapping[str, str]) -> list[Cost]:
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
