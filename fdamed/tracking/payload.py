"""A run as MLflow stores it: tags for provenance, flat params to compare, metrics by round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fdamed.core.disclosure import STEP, shareable
from fdamed.core.run_record import Record, computed, millis

OURS = {"mlflow.user": "fdamed", "mlflow.source.name": "fdamed", "mlflow.source.type": "LOCAL"}
"""No login name, no folder."""
NAMED = 20
"""Up to this number, clients are listed by name."""
RUN, STUDY = "run", "study"
"""Values of the tag `level`: a trained run, or the one entry that holds what belongs to the whole study."""

Point = tuple[str, float, int, int]
"""Metric, value, time in milliseconds, round."""


class Content(NamedTuple):
    """The content of an entry, computed only if it is not in MLflow yet."""

    params: Mapping[str, str]
    points: Sequence[Point]
    files: Mapping[str, str]
    """File name -> text."""


@dataclass(frozen=True)
class Entry:
    """A row of MLflow's table: its key, a digest that shows changes, and how to compute its content."""

    key: str
    digest: str
    name: str
    span: tuple[int, int]
    """Begin and end in milliseconds."""
    tags: Mapping[str, str]
    content: Callable[[], Content]


def listed(clients: Iterable[str]) -> str:
    """The clients by name, or the number of many."""
    names = list(clients)
    return ", ".join(names) if len(names) <= NAMED else f"{len(names)}, {names[0]} to {names[-1]}"


def run_entry(record: Record, smallest: int, files: Mapping[str, str]) -> Entry:
    """A trained run with its files; another smallest cell shows other scores."""
    return Entry(
        key=record.key,
        digest=f"{record.digest}-{smallest}",
        name=f"{record.run}-{record.target}-s{record.seed}",
        span=span(record),
        tags=tags(record),
        content=lambda: Content(params(record), points(record), files),
    )


def study_entry(cohort: str, digest: str, span: tuple[int, int], files: Callable[[], Mapping[str, str]]) -> Entry:
    """The report and its tables."""
    return Entry(
        key=f"{cohort}/{STUDY}",
        digest=digest,
        name=f"{cohort}: the report",
        span=span,
        tags={"level": STUDY, **OURS},
        content=lambda: Content({"study": cohort}, (), files()),
    )


def span(record: Record) -> tuple[int, int]:
    """Begin and end of the training in milliseconds, from the timing of all rounds.

    A clock that was set back between two rounds must not make a run end before it began.
    """
    begins, ends = [millis(row) for row in record.timing], [millis(row, end=True) for row in record.timing]
    return (min(begins), max(ends)) if record.timing else (0, 0)


def tags(record: Record) -> dict[str, str]:
    """Provenance of the run, without login names and folders."""
    out = {"level": RUN, "weights_digest": record.weights, **OURS}
    for group in ("versions", "digests"):
        out |= {f"{group}.{k}": str(shareable(v)) for k, v in (record.facts.get(group) or {}).items()}
    return out


def params(record: Record) -> dict[str, str]:
    """The settings worth comparing, flat; the rest is in config.json."""
    facts = record.facts
    out: dict[str, object] = {"study": facts["study"], "run": record.run, "method": record.method}
    out |= {"target": record.target, "seed": record.seed, "rounds": facts["rounds"]}
    out |= {key: facts.get(key) for key in ("labeled", "parameters")}
    out["sources"] = listed(facts.get("sources") or ())
    for phase in record.phases:
        if phase["phase"] == "warmup":
            out |= {"warmup": phase["rounds"], "warmup_method": phase["method"]}
    for phase in record.second:
        out |= {"then": phase["method"], "then_rounds": phase["rounds"], "then_lr": phase["train"]["target"]["lr"]}
        out |= {f"then_{key}": value for key, value in phase["options"].items()}
    auxiliary = facts.get("auxiliary")
    if auxiliary:
        out |= {"auxiliary": ",".join(auxiliary["heads"]), "alpha": auxiliary["alpha"]}
        out["shared_heads"] = auxiliary.get("share")
    for side in ("source", "target"):
        recipe = (facts.get("train") or {}).get(side) or {}
        out |= {f"{key}_{side}": recipe[key] for key in ("lr", "batch", "epochs", "optimizer") if key in recipe}
    out |= {str(key): value for key, value in (facts.get("options") or {}).items()}
    return {key: str(shareable(value, key))[:6000] for key, value in out.items() if value is not None}


def points(record: Record) -> list[Point]:
    """Metric, value, time in milliseconds, round: curves by round, final scores at the last round."""
    _, end = span(record)
    ended = {int(row["round"]): millis(row, end=True) for row in record.timing}
    last = max([int(row["round"]) for row in record.rounds], default=0)
    values: dict[tuple[str, int], float] = {}
    for row in record.rounds:
        values |= {(key, int(row["round"])): v for key, v in row.items() if v is not None and key != "round"}
    for step, (sent, received) in record.traffic.items():
        values |= {("comm/mb_out_round", step): sent / 1e6, ("comm/mb_in_round", step): received / 1e6}
    values |= {("runtime/seconds_round", int(row["round"])): computed(row, "seconds") for row in record.timing}
    out = [(key, float(value), ended.get(step, end), step) for (key, step), value in values.items()]
    # The final score replaces that of the last round: one value a round.
    final = dict(final_scores(record)) | {"comm/mb_out": record.bytes_out / 1e6}
    if record.timing:
        final["runtime/seconds"] = sum(computed(row, "seconds") for row in record.timing)
    out = [point for point in out if (point[0], point[3]) not in {(key, last) for key in final}]
    return out + [(key, value, end, last) for key, value in final.items()]


def final_scores(record: Record) -> Iterator[tuple[str, float]]:
    """test/SCORE at the target, test/CLIENT/SCORE elsewhere; undefined and suppressed scores are omitted."""
    for client, score in record.scores.items():
        where = "" if client == record.target else f"{client}/"
        for key, value in score.items():
            if isinstance(value, int | float) and key not in ("seed", STEP):
                yield f"test/{where}{key}", float(value)
