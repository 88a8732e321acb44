"""Several runs in one process: libraries and caches are paid for once, and a run that fails does not lose the others.

Snakemake deletes every output of a job that failed. What a run of a batch has finished is therefore kept a second time
below its `state/`, as hard links that cost no room, and taken back instead of trained again.
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
"""What a finished run consists of; `done` last."""
CONDITIONS = "conditions.json"
Conditions = Callable[[], dict[str, Any]]
"""What the bits of a run depend on, asked for only where it matters: it reads files of earlier stages."""
Key = tuple[str, str, int]
"""Run, target, seed."""


def key(word: str) -> Key:
    """`run/target/seed`, as the run's folder is called."""
    run, target, seed = [*word.rsplit("/", 2), "", ""][:3]
    if not (run and target and seed.lstrip("-").isdigit()):
        fix = "Write run/target/seed, for example fedavg/edema/0."
        raise FdamedError(f"{word!r} names no run", "--runs", fix)
    return run, target, int(seed)


def train_all(keys: Sequence[Key], train: Callable[[Key], None]) -> None:
    """Train one run after the other; what failed is told at once, and again at the end."""
    failed = []
    for number, one in enumerate(keys, start=1):
        name = "/".join(map(str, one))
        log.info(f"run {number} of {len(keys)}: {name}")
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
            f"{len(failed)} of {len(keys)} runs of this batch failed: {', '.join(failed)}",
            "federate",
            "The reasons are above. The others are finished and kept: they are taken back, not trained again.",
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
    """Put the files of a run back that was finished under the same conditions; False: there are none."""
    place = _place(folder)
    if not (place / CONDITIONS).exists() or read_json(place / CONDITIONS) != conditions():
        return False
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
        _link(place / name, folder / name)
    told = f"finished before under the same conditions and taken back; remove {folder} to train it again"
    log.info(told)
    return True


def _place(folder: Path) -> Path:
    return folder / "state" / "finished"


def _link(there: Path, here: Path) -> None:
    """A hard link, or a copy on file systems that have none."""
    try:
        os.link(there, here)
    except OSError:
        shutil.copy2(there, here)
