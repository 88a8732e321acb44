"""Several runs in one process: libraries and caches load once, and a run that fails does not lose the others.

Snakemake deletes every output of a failed job. The files of a finished run of a batch are therefore kept a second time
below its `state/`, as hard links that cost no space, and restored instead of trained again.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fdamed.core.errors import FdamedError
from fdamed.core.files import read_json, write_json
from fdamed.core.signals import stop
from fdamed.pipeline.selection import StudyRun

log = logging.getLogger(__name__)
FILES = (
    "run.json",
    "metrics.jsonl",
    "timing.jsonl",
    "ledger.jsonl",
    "layers.jsonl",
    "absences.jsonl",
    "theta.safetensors",
    "done",
)
"""The files of a finished run; `done` last."""
CONDITIONS = "conditions.json"
Conditions = Callable[[], dict[str, Any]]
"""Computes the fingerprint of a run; called only if needed, because it reads files of earlier steps."""
Key = tuple[str, str, int]
"""Run, target, seed."""


def key(word: str) -> Key:
    """`run/target/seed`, as the run's folder is called."""
    run, target, seed = [*word.rsplit("/", 2), "", ""][:3]
    if not (run and target and seed.lstrip("-").isdigit()):
        fix = "Write run/target/seed, for example fedavg/edema/0."
        raise FdamedError(f"{word!r} is not a run", "--runs", fix)
    return run, target, int(seed)


def train_all(runs: Sequence[StudyRun], train: Callable[[StudyRun], None]) -> None:
    """Train one run after the other; a failure is reported at once, and again at the end."""
    failed = []
    for number, one in enumerate(runs, start=1):
        name = f"{one.name}/{one.target}/{one.seed}"
        log.info(f"run {number} of {len(runs)}: {name}")
        try:
            train(one)
        except FdamedError as error:
            failed.append(name)
            log.error(error.lines())
        except Exception:
            failed.append(name)
            log.critical("unexpected error", exc_info=True)
        stop.at_once(True)
    if failed:
        raise FdamedError(
            f"{len(failed)} of {len(runs)} runs of this batch failed: {', '.join(failed)}",
            "federate",
            "See the reasons above. The other runs are finished and kept; they are not trained again.",
        )


def keep(folder: Path, conditions: Conditions) -> None:
    """Keep the files of a finished run a second time, with what they depend on."""
    place = _place(folder)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for name in FILES:
        _link(folder / name, place / name)
    write_json(place / CONDITIONS, conditions())


def taken_back(folder: Path, conditions: Conditions) -> bool:
    """Restore the files of a run that was finished under the same conditions; False: there are none."""
    place = _place(folder)
    if not (place / CONDITIONS).exists() or read_json(place / CONDITIONS) != conditions():
        return False
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
        _link(place / name, folder / name)
    log.info(f"finished before under the same conditions and restored; remove {folder} to train it again")
    return True


def _place(folder: Path) -> Path:
    return folder / "state" / "finished"


def _link(there: Path, here: Path) -> None:
    """A hard link, or a copy on file systems that have none."""
    try:
        os.link(there, here)
    except OSError:
        shutil.copy2(there, here)
