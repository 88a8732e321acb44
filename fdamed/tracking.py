"""Finished runs -> MLflow, as often as one likes: what is already there unchanged is left alone.

Training never talks to MLflow. One importer reads run folders and writes each in a few calls, so compute nodes need no
network, nothing races, and a lost tracking database is made again from the files.

Artefacts of a local store: MLflow would write the absolute path of this machine into the experiment. Instead the
experiment's location is `mlflow-artifacts:/COHORT` and the files are put where a server started with
`--artifacts-destination {results}/mlflow/artifacts` looks for it, so results/ can be moved or copied as a whole.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fdamed.disclosure import hides, shareable
from fdamed.errors import FdamedError
from fdamed.records import Record, millis
from fdamed.safety import secure

USER = "fdamed"
VIEW = "fdamed"
BATCH = 1000
"""Metrics that MLflow takes in one call."""
NAMED = 20
"""Sources that are named one by one."""
PATIENCE = 4.0
"""Seconds until a silent server counts as away."""
FIX = "The runs are safe in files; run the same command again when the tracking server answers."


Artefacts = Callable[[Record], Mapping[str, str]]
"""Record -> {file name: text} to keep with its run."""


@dataclass(frozen=True)
class Store:
    """Where to track: an MLflow URI, and for a local store the folder of its artefacts."""

    uri: str
    artefacts: Path | None = None


@dataclass(frozen=True)
class Tracked:
    """What an import did."""

    experiment: str
    experiment_id: str
    new: int
    replaced: int
    kept: int

    @property
    def link(self) -> str:
        """The result table's address, after the server's own."""
        return f"/#/experiments/{self.experiment_id}/runs?viewStateShareKey={VIEW}&workflowType=machine_learning"


def place(uri: str) -> str:
    """A tracking URI as it may be printed: without user, password and query."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


def connect(store: Store) -> Any:
    """A client of the store, whose database is made if absent; an unreachable server is an error within seconds."""
    secure()
    parts = urlsplit(store.uri)
    if parts.scheme in {"http", "https"}:
        _answers(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80), place(store.uri))
    elif parts.scheme == "sqlite":
        Path(parts.path.removeprefix("/")).parent.mkdir(parents=True, exist_ok=True)
        # MLflow makes an experiment `Default` in every new database, with the absolute path of the working folder.
        os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = "mlflow-artifacts:/"
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return MlflowClient(tracking_uri=store.uri)


def _answers(host: str, port: int, where: str) -> None:
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except OSError:
        raise FdamedError("the MLflow tracking server does not answer", where, FIX) from None


def track(
    records: Iterable[Record], store: Store, cohort: str, note: str, artefacts: Artefacts, smallest: int
) -> Tracked:
    """Bring every record into the experiment `cohort`; call it from one process at a time."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    done = {"new": 0, "replaced": 0, "kept": 0}
    try:
        client = connect(store)
        experiment = _experiment(client, store, cohort, note)
        known = _known(client, experiment)
        for record in records:
            done[_bring(client, experiment, record, known, store, artefacts, smallest)] += 1
    except (MlflowException, SQLAlchemyError, OSError) as error:
        reason = type(error).__name__ if isinstance(error, OSError) else str(error).splitlines()[0][:200]
        shown = place(store.uri)
        raise FdamedError(f"MLflow refused: {reason.replace(store.uri, shown)}", shown, FIX) from None
    return Tracked(cohort, experiment, done["new"], done["replaced"], done["kept"])


def _experiment(client: Any, store: Store, cohort: str, note: str) -> str:
    found = client.get_experiment_by_name(cohort)
    if found is None:
        location = f"mlflow-artifacts:/{cohort}" if store.artefacts else None
        identity = str(client.create_experiment(cohort, artifact_location=location))
    else:
        identity = str(found.experiment_id)
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(identity)
    present = found.tags if found else {}
    tags = {
        "mlflow.experimentKind": "custom_model_development",
        "mlflow.note.content": note,
        f"mlflow.sharedViewState.{VIEW}": json.dumps(_view()),
    }
    for key, value in tags.items():
        if present.get(key) != value:
            client.set_experiment_tag(identity, key, value)
    return identity


def _view() -> dict[str, Any]:
    """What the MLflow page shows first: scores by method, seeds grouped. An internal format: check it at upgrades."""
    groups = [{"mode": "param", "groupByData": name} for name in ("run", "target")]
    columns = ["metrics.`test/auc`", "metrics.`test/acc`", "metrics.`comm/mb_out`", "metrics.`runtime/seconds`"]
    return {
        "searchFilter": "",
        "orderByKey": columns[0],
        "orderByAsc": False,
        "selectedColumns": [*columns, "params.`method`", "params.`target`", "params.`seed`"],
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "runsPinned": [],
        "runsHidden": [],
        "groupBy": {"aggregateFunction": "average", "groupByKeys": groups},
    }


def _known(client: Any, experiment: str) -> dict[str, list[Any]]:
    """Key -> the active runs that carry it."""
    out: dict[str, list[Any]] = {}
    token = None
    while True:
        page = client.search_runs([experiment], max_results=1000, page_token=token)
        for run in page:
            out.setdefault(run.data.tags.get("run_key", ""), []).append(run)
        token = page.token
        if not token:
            return out


def _bring(
    client: Any, experiment: str, record: Record, known: dict[str, list[Any]], store: Store, artefacts: Artefacts,
    smallest: int,
) -> str:  # fmt: skip
    """Import one record; say whether it was kept, replaced or new."""
    old = known.get(record.key, [])
    same = [r for r in old if r.data.tags.get("content_digest") == record.digest and r.info.status == "FINISHED"]
    for run in [r for r in old if r not in same[:1]]:
        client.delete_run(run.info.run_id)
        if store.artefacts:
            shutil.rmtree(store.artefacts / record.facts["cohort"] / run.info.run_id, ignore_errors=True)
    if same:
        return "kept"
    begin, end = _span(record)
    name = f"{record.run}-{record.target}-s{record.seed}"
    created = client.create_run(experiment, start_time=begin, tags=tags(record), run_name=name)
    identity = created.info.run_id
    from mlflow.entities import Metric, Param

    metrics = [Metric(key, value, when, step) for key, value, when, step in points(record, smallest)]
    client.log_batch(identity, metrics[:BATCH], [Param(k, v) for k, v in params(record).items()])
    for start in range(BATCH, len(metrics), BATCH):
        client.log_batch(identity, metrics[start : start + BATCH])
    for path, text in artefacts(record).items():
        if store.artefacts:
            # Plain, not synced: a run that was cut short is not FINISHED and is imported again.
            file = store.artefacts / record.facts["cohort"] / identity / "artifacts" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        else:
            client.log_text(identity, text, path)
    client.set_terminated(identity, "FINISHED", end_time=end)
    return "replaced" if old else "new"


# --- what a run becomes ----------------------------------------------------------------------------------------------


def _span(record: Record) -> tuple[int, int]:
    """Begin and end of the training in milliseconds, from its files: an import tells nothing of its own clock."""
    return (millis(record.timing[0]), millis(record.timing[-1], end=True)) if record.timing else (0, 0)


def tags(record: Record) -> dict[str, str]:
    """Where the run comes from; nobody's login name, nobody's folders."""
    out = {
        "run_key": record.key,
        "content_digest": record.digest,
        "weights_digest": record.weights,
        "mlflow.user": USER,
        "mlflow.source.name": "fdamed",
        "mlflow.source.type": "LOCAL",
    }
    for group in ("versions", "digests"):
        out |= {f"{group}.{k}": str(shareable(v)) for k, v in (record.facts.get(group) or {}).items()}
    return out


def params(record: Record) -> dict[str, str]:
    """What defines the run and is worth comparing, flat: the rest is in its config.json."""
    facts = record.facts
    out: dict[str, object] = {"cohort": facts["cohort"], "run": record.run, "method": record.method}
    out |= {"target": record.target, "seed": record.seed, "rounds": facts["rounds"]}
    out |= {key: facts.get(key) for key in ("labelled", "parameters")}
    sources: list[str] = list(facts.get("sources") or [])
    out["sources"] = ",".join(sources) if len(sources) <= NAMED else f"{len(sources)}: {sources[0]} to {sources[-1]}"
    for phase in record.phases[1:]:
        out |= {"then": phase["method"], "then_rounds": phase["rounds"], "then_lr": phase["train"]["target"]["lr"]}
        out |= {f"then_{key}": value for key, value in phase["options"].items()}
    auxiliary = facts.get("auxiliary")
    if auxiliary:
        out |= {"auxiliary": ",".join(auxiliary["heads"]), "alpha": auxiliary["alpha"]}
    for side in ("source", "target"):
        recipe = (facts.get("train") or {}).get(side) or {}
        out |= {f"{key}_{side}": recipe[key] for key in ("lr", "batch", "epochs", "optimiser") if key in recipe}
    out |= {str(key): value for key, value in (facts.get("options") or {}).items()}
    return {key: str(shareable(value, key))[:6000] for key, value in out.items() if value is not None}


def points(record: Record, smallest: int) -> list[tuple[str, float, int, int]]:
    """Metric, value, time in milliseconds, round: curves by round, final scores at the last round."""
    _, end = _span(record)
    ended = {int(row["round"]): millis(row, end=True) for row in record.timing}
    last = max([int(row["round"]) for row in record.rounds], default=0)
    final = dict(_final(record, smallest))
    own = record.scores.get(record.target)
    hidden = own is not None and hides(own["n"], own["positives"], smallest)
    out: list[tuple[str, float, int, int]] = []
    for row in record.rounds:
        step = int(row["round"])
        for key, value in row.items():
            # The final score takes the place of the last round's: one value a round.
            taken = key in final and step == last
            if key != "round" and value is not None and not taken and not (hidden and key.startswith("test/")):
                out.append((key, float(value), ended.get(step, end), step))
    for step, (sent, received) in record.traffic.items():
        when = ended.get(step, end)
        out += [("comm/mb_out_round", sent / 1e6, when, step), ("comm/mb_in_round", received / 1e6, when, step)]
    out += [
        ("runtime/seconds_round", float(r["seconds"]), ended[int(r["round"])], int(r["round"])) for r in record.timing
    ]
    out.append(("comm/mb_out", record.bytes_out / 1e6, end, last))
    if record.timing:
        out.append(("runtime/seconds", sum(float(r["seconds"]) for r in record.timing), end, last))
    return out + [(key, value, end, last) for key, value in final.items()]


def _final(record: Record, smallest: int) -> Iterator[tuple[str, float]]:
    """test/SCORE at the target, test/PARTY/SCORE elsewhere; nothing where it is undefined or may not be shown."""
    for party, score in record.scores.items():
        if hides(score["n"], score["positives"], smallest):
            continue
        where = "" if party == record.target else f"{party}/"
        for key, value in score.items():
            if isinstance(value, int | float) and key not in {"n", "positives", "seed"}:
                yield f"test/{where}{key}", float(value)
