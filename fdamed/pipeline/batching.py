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

from fdamed.core.errors import FdamedError
from fdamed.core.files import read_json, write_json
from fdamed.core.signals import stop
from fdamed.pipeline.fingerprint import fingerprint
from fdamed.pipeline.selection import StudyRun

log = logging.getLogger(__name__)
RECORDS = ("run.json", "metrics.jsonl", "timing.jsonl", "ledger.jsonl", "layers.jsonl", "absences.jsonl")
FILES = (*RECORDS, "theta.safetensors", "done")
"""The files of a finished run; `done` last."""
CONDITIONS = "conditions.json"
"""The fingerprint of the run whose files are kept."""


def key(word: str) -> tuple[str, str, int]:
    """Run, target and seed from `run/target/seed`, as the run's folder is called."""
    run, target, seed = [*word.rsplit("/", 2), "", ""][:3]
    if not (run and target and seed.lstrip("-").isdigit()):
        fix = "Write run/target/seed, for example fedavg/edema/0."
        raise FdamedError(f"{word!r} is not a run", "--runs", fix)
    return run, target, int(seed)


def train_all(runs: Sequence[StudyRun], train: Callable[[StudyRun], None]) -> None:
    """Train one run after the other; a failure is reported at once, and again at the end."""
    failed = []
    for number, one in enumerate(runs, start=1):
        log.info(f"run {number} of {len(runs)}: {one.key}")
        try:
            train(one)
        except FdamedError as error:
            failed.append(one.key)
            log.error(error.lines())
        except Exception:
            failed.append(one.key)
            log.critical("unexpected error", exc_info=True)
        stop.at_once(True)
    if failed:
        raise FdamedError(
            f"{len(failed)} of {len(runs)} runs of this batch failed: {', '.join(failed)}",
            "federate",
            "See the reasons above. The other runs are finished and kept; they are not trained again.",
        )


def keep(one: StudyRun, threads: int) -> None:
    """Keep the files of a finished run a second time, with its fingerprint."""
    kept = _kept(one)
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for name in FILES:
        _link(one.folder / name, kept / name)
    write_json(kept / CONDITIONS, fingerprint(one, threads))


def restore(one: StudyRun, threads: int) -> bool:
    """Restore the files of a run that was finished with the same fingerprint; False: there are none."""
    kept = _kept(one)
    if not (kept / CONDITIONS).exists() or read_json(kept / CONDITIONS) != fingerprint(one, threads):
        return False
    for name in FILES:
        (one.folder / name).unlink(missing_ok=True)
        _link(kept / name, one.folder / name)
    log.info(f"finished before under the same conditions and restored; remove {one.folder} to train it again")
    return True


def _kept(one: StudyRun) -> Path:
    return one.folder / "state" / "finished"


def _link(source: Path, copy: Path) -> None:
    """A hard link, or a copy on file systems that have none."""
    try:
        os.link(source, copy)
    except OSError:
        shutil.copy2(source, copy)
