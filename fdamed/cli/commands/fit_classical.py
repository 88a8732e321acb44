"""Fit one classical method on the features that the clients release, and score it.

Examples:
    fdamed fit-classical --config config/config.yaml config/papers/fedrf_tca/classical.yaml --run tca --target edema --seed 0
"""  # noqa: E501

from __future__ import annotations

import argparse
import dataclasses
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pandas as pd
import sklearn
import torch
from numpy.typing import NDArray

from fdamed import __version__
from fdamed.classical.central_fit import pool
from fdamed.classical.messages import BACKBONE, PREDICTIONS, TEST_FEATURES
from fdamed.classical.registry import ROWS, Row
from fdamed.cli.options import read_config
from fdamed.config.base import digest_sections
from fdamed.config.study import Config
from fdamed.core.disclosure import lacking
from fdamed.core.errors import FdamedError
from fdamed.core.files import digest, digest_file, read_json, write_json, write_lines, write_text
from fdamed.core.locks import locked
from fdamed.data.loader import Labeled
from fdamed.evaluation.metrics import scores
from fdamed.federation.client import Client
from fdamed.federation.server import Server
from fdamed.federation.storage.client_state import unpack_state
from fdamed.models.backbone import build
from fdamed.models.flat import FlatModel
from fdamed.pipeline.clients import transport
from fdamed.pipeline.features import read
from fdamed.pipeline.paths import FROZEN, needed, rows_in, weights_in
from fdamed.pipeline.scoring import write_scores
from fdamed.pipeline.selection import StudyRun

GROUP = "run", 4
OPTIONS = {"--config": "", "--run": "", "--target": "", "--seed": "", "--threads": ""}
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
    torch.set_num_threads(threads)
    config, spec, target, seed, places = one.config, one.spec, one.target, one.seed, one.places
    needed(places.root / "leakage.json", "leakage")
    cohort = read_json(needed(places.root / "cohort.json", "split"))
    row = ROWS[spec.method](**spec.options)
    model = FlatModel(build(config.model))
    backbone = needed(places.weights(row.features, target, seed), "init" if row.features == FROZEN else "federate")
    theta = weights_in(backbone, "federate", model.layout)
    wire = transport(
        config,
        spec.method,
        model,
        threads,
        build=partial(client_of, config, row, target=target, seed=seed),
        aside=lambda p: places.memory(p, one.name, target, seed) / "aside.safetensors",
    )
    server = Server(wire, target, spec.method)
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    begin, used = time.perf_counter(), time.process_time()
    try:
        server.begin(1, 1)
        fitted = pool(row, theta, server, config.model.classes, seed)
        spent = {"seconds": round(time.perf_counter() - begin, 4), "cpu": round(time.process_time() - used, 4)}
        state = wire.state(target, (PREDICTIONS,))
        p: NDArray[Any] = unpack_state(state or b"", f"client {target}")[PREDICTIONS].numpy()[: len(judged(one))]
    finally:
        server.close()
    write_json(one.folder / "run.json", describe(one, row, fitted, cohort["hash"], digest_file(backbone)))
    write_lines(one.folder / "metrics.jsonl", [{"round": 1}])
    write_lines(one.rounds(), [{"round": 1, **scored(one, row.title, p)}])
    write_lines(one.folder / "timing.jsonl", [{"round": 1, "started": started, **spent}])
    write_lines(one.folder / "ledger.jsonl", server.ledger.lines())
    write_lines(one.folder / "absences.jsonl", server.absences)
    write_text(one.folder / "done", digest(p.tobytes().hex()) + "\n")


def client_of(
    config: Config, row: Row, client: str, target: str, seed: int, model: FlatModel | None = None, **_: Any
) -> Client:
    """A client with features in the place of its images: a source's with labels, the target's without."""
    kept = read(config, client, row.features, target, seed)
    split = kept.rows["split"]
    learned = split.isin(("train", "adapt")).to_numpy()
    data: Any = Labeled(kept.z.numpy()[learned], kept.rows["y"].to_numpy(dtype="int64")[learned], {})
    memory = {BACKBONE: kept.backbone}
    if client == target:
        data = data.without_labels()
        asked = kept.z[torch.from_numpy(split.isin(JUDGED).to_numpy(copy=True))]
        # The bytes would tell the size of a small part; with zeros after the images it looks as large as may be shown.
        missing = lacking([int((split == part).sum()) for part in JUDGED], config.smallest_cell)
        memory[TEST_FEATURES] = torch.cat([asked, asked.new_zeros(missing, asked.shape[1])])
    return Client(
        name=client,
        role="target" if client == target else "source",
        data=data,
        model=model or FlatModel(build(config.model)),
        recipe=config.train.target if client == target else config.train.source,
        seed=seed,
        release=frozenset(config.privacy.release),
        minimum=config.minimum,
        memory=memory,
    )


def judged(one: StudyRun) -> pd.DataFrame:
    """The target's val and test images, about which it asks."""
    rows = rows_in(one.places.client(one.target) / "order.parquet", "cache")
    return rows[rows["split"].isin(JUDGED)]


def scored(one: StudyRun, title: str, p: NDArray[Any]) -> dict[str, float | None]:
    """Accuracy and AUC of the target's val and test images; writes those of the test images."""
    rows = judged(one)
    y, val = rows["y"].to_numpy(dtype="int64"), (rows["split"] == "val").to_numpy()
    found = {"val": scores(y[val], p[val]), "test": write_scores(one, one.target, title, y[~val], p[~val])}
    return {f"{split}/{name}": found[split][name] for name in ("acc", "auc") for split in JUDGED}


def describe(one: StudyRun, row: Row, fitted: Row, manifest: str, backbone: str) -> dict[str, Any]:
    """The content of run.json."""
    config, spec = one.config, one.spec
    data = {p: digest_file(one.places.client(p) / "order.parquet") for p in sorted(config.split.clients)}
    return one.facts() | {
        "title": type(row).title,
        "options": dataclasses.asdict(row),
        "fitted": dataclasses.asdict(fitted),
        "rounds": 1,
        "train": config.train.model_dump(mode="json"),
        "device": "cpu",
        "parameters": 0,
        "extra_parameters": 0,
        "versions": {"fdamed": __version__, "torch": torch.__version__, "scikit-learn": sklearn.__version__},
        "digests": {
            "settings": digest_sections(config.model, spec),
            "data": digest(data),
            "init": backbone,
            "manifest": manifest,
        },
    }
