"""Fit one classical method on the features that the clients release, and score it.

Examples:
    fdamed fit-classical --config config/config.yaml config/papers/fedrf_tca/classical.yaml --run tca --target edema --seed 0
"""  # noqa: E501

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from fdamed import __version__
from fdamed.cli.options import read_config
from fdamed.config.base import digest_sections
from fdamed.config.runs import Run
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import digest, digest_file, read_json, write_json, write_lines, write_text
from fdamed.core.locks import locked
from fdamed.pipeline.clients import device, resident
from fdamed.pipeline.features import read
from fdamed.pipeline.paths import FROZEN, needed, rows_in, weights_in
from fdamed.pipeline.scoring import write_scores
from fdamed.pipeline.selection import StudyRun

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from fdamed.classical.registry import Row
    from fdamed.federation.client import Client
    from fdamed.federation.server import Server
    from fdamed.models.flat import FlatModel

GROUP = "run", 4
OPTIONS = {"--config": {}, "--run": {}, "--target": {}, "--seed": {}, "--threads": {}}
JUDGED = ("val", "test")


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    one = StudyRun.of(config, arguments.run_name, arguments.target, arguments.seed)
    if not one.classical:
        what = f"{one.spec.method} is not a classical method"
        raise FdamedError(what, f"runs.{one.name}", "Use `fdamed federate`.")
    with locked(one.folder):
        fit(one, arguments.threads)


def fit(one: StudyRun, threads: int) -> None:
    """Pool the features that the clients release, align them, classify, and write the run's folder."""
    import torch

    from fdamed.classical.central_fit import pool
    from fdamed.classical.registry import ROWS

    torch.set_num_threads(threads)
    config, spec, target, seed, places = one.config, one.spec, one.target, one.seed, one.places
    refuse_unreleased(config, spec, target)
    needed(places.root / "leakage.json", "leakage")
    cohort = read_json(needed(places.root / "cohort.json", "split"))
    row = ROWS[spec.method](**spec.options)
    model = resident(config)
    backbone = needed(places.weights(row.features, target, seed), "init" if row.features == FROZEN else "federate")
    theta = weights_in(backbone, "federate", model.layout)
    server = network(config, spec.method, row, target, seed, model, threads)
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    begin, used = time.perf_counter(), time.process_time()
    try:
        server.begin(1, 1)
        fitted = pool(row, theta, server, config.model.classes, seed)
        spent = {"seconds": round(time.perf_counter() - begin, 4), "cpu": round(time.process_time() - used, 4)}
        p = answers(server, places.memory(target, one.name, target, seed) / "answers.safetensors")
    finally:
        server.close()
    folder = one.folder
    metrics = {"round": 1, **scored(one, row.title, p)}
    write_json(folder / "run.json", describe(one, row, fitted, cohort["hash"], digest_file(backbone)))
    write_lines(folder / "metrics.jsonl", [metrics])
    write_lines(folder / "timing.jsonl", [{"round": 1, "started": started, **spent}])
    write_lines(folder / "ledger.jsonl", server.ledger.lines())
    write_lines(folder / "absences.jsonl", server.absences)
    write_text(folder / "done", digest(p.tobytes().hex()) + "\n")


def refuse_unreleased(config: Config, spec: Run, target: str) -> None:
    """Before a single feature is read: every hospital's policy against every step."""
    from fdamed.classical.messages import SOURCE_STEPS, TARGET_STEPS
    from fdamed.federation.client import check_release

    for client in config.split.clients:
        for step in TARGET_STEPS if client == target else SOURCE_STEPS:
            check_release(step, frozenset(config.privacy.release), client, spec.method)


def network(config: Config, method: str, row: Row, target: str, seed: int, model: FlatModel, threads: int) -> Server:
    """All hospitals with their features, in this process or in one each."""
    from fdamed.federation.server import Server
    from fdamed.federation.transport.in_process import InProcess
    from fdamed.federation.transport.multiprocess import Processes

    builders = {p: partial(site, config, row, p, target, seed) for p in config.split.clients}
    if config.train.transport == "in_process":
        return Server(InProcess({p: build(model=model) for p, build in builders.items()}), target, method)
    release = {p: frozenset(config.privacy.release) for p in config.split.clients}
    return Server(Processes(builders, model.layout, method, release, threads), target, method)


def site(config: Config, row: Row, client: str, target: str, seed: int, model: FlatModel | None = None) -> Client:
    """One hospital with its features in the place of its images: a source's with labels, the target's without."""
    import torch

    from fdamed.classical.messages import BACKBONE, QUESTIONS
    from fdamed.data.loader import Labeled
    from fdamed.federation.client import Client

    kept = read(config, client, row.features, target, seed)
    split = kept.rows["split"]
    learned = split.isin(("train", "adapt")).to_numpy()
    data: Any = Labeled(kept.z.numpy()[learned], kept.rows["y"].to_numpy(dtype="int64")[learned], {})
    memory = {BACKBONE: kept.backbone}
    if client == target:
        data = data.without_labels()
        memory[QUESTIONS] = kept.z[torch.from_numpy(split.isin(JUDGED).to_numpy(copy=True))]
    return Client(
        name=client,
        role="target" if client == target else "source",
        data=data,
        model=model or resident(config),
        recipe=config.train.target if client == target else config.train.source,
        seed=seed,
        release=frozenset(config.privacy.release),
        minimum=config.minimum,
        memory=memory,
    )


def answers(server: Server, path: Path) -> NDArray[Any]:
    """The probabilities that the target has in its memory, by way of a file in its own folder."""
    from fdamed.classical.messages import ANSWERS
    from fdamed.federation.client_state import unpack_state

    state = server.transport.state(server.target, (ANSWERS,))
    p: NDArray[Any] = unpack_state(state or b"", f"client {server.target}")[ANSWERS].numpy()
    return p


def scored(one: StudyRun, title: str, p: NDArray[Any]) -> dict[str, float | None]:
    """Accuracy and AUC of the target's val and test images; those of the test images are written, too."""
    from fdamed.evaluation.metrics import scores

    rows = rows_in(one.places.client(one.target) / "order.parquet", "cache")
    asked = rows[rows["split"].isin(JUDGED)]
    y, split = asked["y"].to_numpy(dtype="int64"), asked["split"].to_numpy(dtype=object)
    val, test = split == "val", split == "test"
    found = {"val": scores(y[val], p[val]), "test": write_scores(one, one.target, title, y[test], p[test])}
    return {f"{s}/acc": found[s]["acc"] for s in JUDGED} | {f"{s}/auc": found[s]["auc"] for s in JUDGED}


def describe(one: StudyRun, row: Row, fitted: Row, manifest: str, backbone: str) -> dict[str, Any]:
    """The content of run.json."""
    import sklearn
    import torch

    config, spec = one.config, one.spec
    data = {p: digest_file(one.places.client(p) / "order.parquet") for p in sorted(config.split.clients)}
    return {
        "study": config.study,
        "run": one.name,
        "method": spec.method,
        "title": type(row).title,
        "options": dataclasses.asdict(row),
        "fitted": dataclasses.asdict(fitted),
        "auxiliary": None,
        "labeled": config.split.labeled,
        "target": one.target,
        "sources": sorted(p for p in config.split.clients if p != one.target),
        "seed": one.seed,
        "noise": config.split.noise,
        "rounds": 1,
        "train": config.train.model_dump(mode="json"),
        "device": device(config),
        "parameters": 0,
        "extra_parameters": 0,
        "versions": {"fdamed": __version__, "torch": torch.__version__, "scikit-learn": sklearn.__version__},
        "digests": {
            "settings": digest_sections(config.model, spec),
            "data": digest(data),
            "init": backbone,
            "manifest": manifest,
        },
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
    }
