"""Write the tables, the figures and the HTML report of a study.

Examples:
    fdamed report --config config/config.yaml
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

from fdamed.cli.options import add_config, read_config
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import read_json, write_text
from fdamed.core.locks import locked

log = logging.getLogger(__name__)
GROUP = "analyze", 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)


def run(arguments: argparse.Namespace) -> None:
    from fdamed.core import run_record as folders
    from fdamed.evaluation import cohort as cohorts
    from fdamed.evaluation import communication as traffic
    from fdamed.evaluation import run_tables as tables
    from fdamed.evaluation import time_to_score as clock
    from fdamed.report import aggregate as study
    from fdamed.report import context as contents
    from fdamed.report import cosines, figures, jacobians
    from fdamed.report import export_figures as pictures
    from fdamed.report import export_tables as written
    from fdamed.report import membership_inference as recognized
    from fdamed.report import privacy as guarded
    from fdamed.report import render as page
    from fdamed.report import rounds_log as notes

    config = read_config(arguments)
    folder = Path(config.results) / config.study
    runs = {name: entry.method for name, entry in config.expanded_runs().items()}
    records, missing = folders.study(
        folder / "runs", [(r, t, s) for r in runs for t in config.split.targets for s in config.seeds]
    )
    if not records:
        raise FdamedError("no run of this study is finished", str(folder), "Run `snakemake --cores 2` first.")
    for name in ("cohort.json", "ingest.json", "leakage.json"):
        if not (folder / name).is_file():
            raise FdamedError(f"{name} is missing", str(folder), "Run `snakemake --cores 2`: it makes what is missing.")
    cohort, ingest, leakage = (read_json(folder / f"{name}.json") for name in ("cohort", "ingest", "leakage"))
    smallest, membership = config.privacy.smallest_cell, _membership(config, folder)

    frames = study.Frames(
        scores=tables.tidy(records, smallest),
        rounds=tables.rounds(records, smallest),
        sent=traffic.sent(records),
        traffic=traffic.by_run(records),
        spent=traffic.by_round(records),
        clock=clock.by_round(records),
        sizes=cohorts.sizes(cohort, smallest),
        absences=notes.absences(folder / "runs", records),
        weights=notes.weights(records),
        jacobians=jacobians.frame(records),
    )
    known = study.known(config, frames, records, cohort, _advice(config, folder), _audits(config, folder))
    with locked(folder / "report"):
        frames_of_guards = {"privacy": guarded.costs(records), "membership": recognized.frame(membership)}
        more = {name: frame for name, frame in frames_of_guards.items() if not frame.empty}
        for name, frame in (written.files(known, frames) | more).items():
            write_text(folder / "report" / "tables" / f"{name}.csv", tables.to_csv(frame))
            write_text(folder / "report" / "tables" / f"{name}.md", tables.to_markdown(frame))
        write_text(folder / "report" / "what_left_each_hospital.csv", tables.to_csv(frames.sent))
        for name, figure in pictures.pictures(known, frames):
            figures.save(figure, folder / "report" / "figures", name)
        facts = cohort | {"leakage": leakage, "membership": membership}
        heats = cosines.heats(folder / "runs", config)
        content = contents.page(config, known, frames, records, missing, facts, ingest, heats)
        write_text(folder / "report" / "index.html", page.render(content))
    absent = f", {len(missing)} missing" if missing else ""
    log.info(f"report on {len(records)} runs{absent}: {folder / 'report' / 'index.html'}")


def _advice(config: Config, folder: Path) -> dict[str, dict[str, Any] | None]:
    """Target -> the advice that the configuration asks for, None where it is not there yet."""
    files = {t: folder / "advice" / f"{t}.json" for t in config.split.targets} if config.advise else {}
    return {target: read_json(path) if path.is_file() else None for target, path in files.items()}


def _audits(config: Config, folder: Path) -> dict[str, dict[str, Any]]:
    """Target -> its audit, where it is there, and in it the leak probe, where that is."""
    out = {}
    for target in config.split.targets:
        audit, probe = (folder / kind / f"{target}.json" for kind in ("audit", "attributes"))
        if audit.is_file():
            out[target] = read_json(audit) | {"probe": read_json(probe) if probe.is_file() else None}
    return out


def _membership(config: Config, folder: Path) -> list[dict[str, Any]]:
    """What each hospital told of its patients' membership, where it was asked."""
    files = (
        [folder / "membership" / f"{client}.json" for client in config.split.clients] if config.audit.membership else []
    )
    return [read_json(path) for path in files if path.is_file()]
