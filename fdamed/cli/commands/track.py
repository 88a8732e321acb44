"""Import the finished runs of a study into MLflow; importing twice changes nothing.

Examples:
    fdamed track --config config/config.yaml
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fdamed.cli.options import read_config
from fdamed.config.study import Config
from fdamed.core.counts import counts_of
from fdamed.core.disclosure import shareable
from fdamed.core.errors import FdamedError
from fdamed.core.files import digest, digest_file, read_json, write_json
from fdamed.core.locks import locked
from fdamed.core.progress import track as progress
from fdamed.core.run_record import Record, study
from fdamed.evaluation.comparison.power import part_can_choose
from fdamed.pipeline.selection import all_runs
from fdamed.tracking.models import Candidate, offered
from fdamed.tracking.payload import Entry, run_entry, span, study_entry
from fdamed.tracking.store import Store, place
from fdamed.tracking.sync import track
from fdamed.tracking.ui import experiment_tags, link

log = logging.getLogger(__name__)
GROUP = "analyze", 5
OPTIONS = {"--config": ""}
OF_THE_STUDY = ("report/index.html", "report/what_left_each_hospital.csv", "report/tables/headline.csv", "cohort.json")
"""Files of the study as a whole, if they exist."""
Cohort = Mapping[str, Mapping[str, Any]]
"""Client -> its counts by part."""
WAIT = 300.0
"""Seconds to wait for another study's import into the same database."""


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    folder = Path(config.results) / config.study
    records, missing = study(
        folder / "runs", [(one.name, one.target, one.seed) for one in all_runs(config)], config.smallest_cell
    )
    if not records:
        raise FdamedError("no run of this study is finished", str(folder), "Run `snakemake --cores 2` first.")

    def save(record: Record, folder: Path, identity: str) -> None:
        from fdamed.export.writer import save_for_mlflow  # torch and onnx, which only a new model needs
        from fdamed.pipeline.finished_runs import of_study

        save_for_mlflow(of_study(config, record.run, record.target, record.seed), folder, identity)

    cohort = {target: counts_of(folder, target) for target in config.split.targets}
    store = Store.of(config)
    entries = progress([*run_entries(config, records), report_entry(config, folder, records)], "runs to MLflow")
    said = read_json(folder / "report/headline.json") if (folder / "report/headline.json").is_file() else {}
    tags = experiment_tags(config, [content["sentences"][0] for content in said.values()])
    with locked(store.artifacts.parent if store.artifacts else Path(config.results) / "mlflow", WAIT):
        done = track(entries, models(config, records, cohort), save, store, config.study, tags)
    page = link(done.experiment_id)
    content = {
        "experiment": config.study,
        "experiment_id": done.experiment_id,
        "runs": len(records),
        "missing": len(missing),
        "models": done.models,
        "store": "a local SQLite file" if store.artifacts else place(store.uri),
        "open": f"fdamed mlflow, then http://127.0.0.1:5000{page}" if store.artifacts else page,
    }
    write_json(folder / "tracked.json", content)
    counts = ", ".join(f"{number} {what}" for what, number in done.counts.items())
    log.info(f"{len(records)} runs and the report in MLflow: {counts}")


def models(config: Config, records: list[Record], cohort: Cohort) -> list[Candidate]:
    """The models to register: of targets whose validation part can carry the choice, if ONNX can be written."""
    if not config.tracking.models:
        return []
    if not all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime")):
        log.warning("no model is registered: pip install 'fdamed[export]' to have them")
        return []
    carry = [target for target in config.split.targets if part_can_choose(cohort.get(target, {}))]
    for target in config.split.targets:
        if target not in carry:
            log.warning(f"no model is registered for {target}: its validation part is too small to choose one by")
    return offered(config, records, carry)


def run_entries(config: Config, records: list[Record]) -> list[Entry]:
    """Every finished run with its configuration."""
    text = json.dumps(shareable(config.model_dump(mode="json")), indent=1, ensure_ascii=False) + "\n"
    return [run_entry(record, config.smallest_cell, {"config.json": text}) for record in records]


def report_entry(config: Config, folder: Path, records: list[Record]) -> Entry:
    """The report and its tables, as far as they exist."""
    names = [name for name in OF_THE_STUDY if (folder / name).is_file()]
    begins, ends = zip(*map(span, records), strict=True)
    return study_entry(
        config.study,
        digest([digest_file(folder / name) for name in names]),
        (min(begins), max(ends)),
        lambda: {name: (folder / name).read_text(encoding="utf-8") for name in names},
    )
