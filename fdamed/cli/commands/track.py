"""Import the finished runs of a study into MLflow; importing twice changes nothing.

Examples:
    fdamed track --config config/config.yaml
"""

from __future__ import annotations

import argparse
import html
import json
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fdamed.cli.options import add_config, read_config
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import digest, digest_file, write_json
from fdamed.core.locks import locked
from fdamed.core.run_record import Record, study
from fdamed.tracking.models import Candidate
from fdamed.tracking.payload import NAMED, Entry, run_entry, span, study_entry
from fdamed.tracking.store import Store

log = logging.getLogger(__name__)
GROUP = "analyze", 5
OF_THE_STUDY = ("report/index.html", "report/what_left_each_hospital.csv", "report/tables/headline.md", "cohort.json")
"""Files of the study as a whole, if they exist."""
WAIT = 300.0
"""Seconds to wait for another study's import into the same database."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)


def run(arguments: argparse.Namespace) -> None:
    from fdamed.core.progress import track as progress
    from fdamed.tracking.store import place
    from fdamed.tracking.sync import track
    from fdamed.tracking.ui import experiment_tags, link

    config = read_config(arguments)
    folder = Path(config.results) / config.study
    keys = [(r, t, s) for r in config.expanded_runs() for t in config.split.targets for s in config.seeds]
    records, missing = study(folder / "runs", keys)
    if not records:
        raise FdamedError("no run of this study is finished", str(folder), "Run `snakemake --cores 2` first.")
    store = store_of(config)
    with _turn(store.artifacts.parent if store.artifacts else Path(config.results) / "mlflow"):
        done = track(
            progress([*of_runs(config, records), of_study(config, folder, records)], "runs to MLflow"),
            models_of(config, records), store, config.study, experiment_tags(note(config), len(config.split.targets)),
        )  # fmt: skip
    content = {
        "experiment": config.study,
        "experiment_id": done.experiment_id,
        "runs": len(records),
        "missing": len(missing),
        "models": done.models,
        "store": "a local SQLite file" if store.artifacts else place(store.uri),
        "open": f"make mlflow, then http://127.0.0.1:5000{link(done.experiment_id)}"
        if store.artifacts
        else link(done.experiment_id),
    }
    write_json(folder / "tracked.json", content)
    counts = f"{done.new} new, {done.replaced} replaced, {done.kept} kept"
    log.info(f"{len(records)} runs and the report in MLflow: {counts}")


def models_of(config: Config, records: list[Record]) -> list[Candidate]:
    """The models to register; none if ONNX cannot be written or the configuration says so."""
    import importlib.util

    from fdamed.export.writer import save_for_mlflow
    from fdamed.pipeline.finished_runs import of_study
    from fdamed.tracking.candidates import offered

    def save(record: Record, folder: Path, identity: str) -> None:
        save_for_mlflow(of_study(config, record.run, record.target, record.seed), folder, identity)

    if not config.tracking.models:
        return []
    if not all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime")):
        log.warning("no model is registered: pip install 'fdamed[export]' to have them")
        return []
    return offered(config, records, save)


def of_runs(config: Config, records: list[Record]) -> list[Entry]:
    """Every finished run with its configuration, its curve and its confusion matrix."""
    from fdamed.core.disclosure import shareable
    from fdamed.report.plots.confusion import confusion_svg
    from fdamed.report.plots.lines import run_curve

    smallest = config.privacy.smallest_cell
    text = json.dumps(shareable(config.model_dump(mode="json")), indent=1, ensure_ascii=False) + "\n"

    def files(record: Record) -> dict[str, str]:
        kept = {"config.json": text, "figures/rounds.svg": run_curve(record, smallest)}
        matrix = confusion_svg(record, smallest)
        return kept | ({"figures/confusion_matrix.svg": matrix} if matrix else {})

    return [run_entry(record, smallest, files) for record in records]


def of_study(config: Config, folder: Path, records: list[Record]) -> Entry:
    """The report and its tables, as far as they exist."""
    there = [name for name in OF_THE_STUDY if (folder / name).is_file()]
    spans = [span(record) for record in records]
    return study_entry(
        config.study,
        digest([digest_file(folder / name) for name in there]),
        (min(begin for begin, _ in spans), max(end for _, end in spans)),
        lambda: {name: (folder / name).read_text(encoding="utf-8") for name in there},
    )


def store_of(config: Config) -> Store:
    """The configured server, or a SQLite file and an artifact folder below results/mlflow/."""
    uri = config.tracking.uri or f"sqlite:///{Path(config.results).resolve()}/mlflow/mlflow.db"
    if uri.startswith("sqlite:///"):
        return Store(uri, Path(uri.removeprefix("sqlite:///")).resolve().parent / "artifacts")
    return Store(uri)


def note(config: Config) -> str:
    """The note on the study's MLflow page."""
    synthetic = "**Synthetic phantoms: nothing here is about real patients.**\n\n" if config.phantom else ""
    targets, clients = ", ".join(config.split.targets), list(config.split.clients)
    named = ", ".join(clients) if len(clients) <= NAMED else f"{len(clients)}, {clients[0]} to {clients[-1]}"
    return (
        f"{synthetic}Hospitals cut by {html.escape(config.split.by)}: {named}; adapted to: {targets}; "
        f"{len(config.seeds)} seeds. `test/` is the target's test split, `comm/mb_out` what left the hospitals, in MB. "
        "Rows are grouped by run and target; open a group to see its seeds."
    )


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Lock the database; wait while another study imports."""
    end = time.monotonic() + WAIT
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(folder))
                break
            except FdamedError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)
        yield
