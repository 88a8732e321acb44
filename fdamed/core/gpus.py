"""GPUs of this machine, and the lease of one by a process: a file lock, which ends with the process."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fdamed.core.errors import FdamedError

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER, BY_BUS = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
SCHEDULED = "SLURM_JOB_ID"
QUERY = ("nvidia-smi", "--query-gpu=uuid,name,driver_version,memory.total", "--format=csv,noheader,nounits")
FOLDER = Path("/tmp/fdamed-gpus")  # noqa: S108  (empty files, which nobody reads)
"""Where all users of the machine lock GPUs, whatever their TMPDIR."""
NOBODY = "-1"
"""In CUDA_VISIBLE_DEVICES: no GPU."""
PATIENCE = 600.0
"""Seconds to wait for a GPU that another job uses: it may just be ending."""
_LEASES: list[int] = []
"""Locks that this process holds until it ends."""


@dataclass(frozen=True)
class Gpu:
    uuid: str
    name: str
    driver: str
    memory_mb: int
    """0: the driver does not know."""


@cache
def gpus() -> tuple[Gpu, ...]:
    """NVIDIA's GPUs that this process may open, as its driver lists them; none without a driver."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=30, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ()
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    rows = [[word.strip() for word in line.split(",")] for line in lines]
    return tuple(Gpu(r[0], r[1], r[2], int(r[3]) if r[3].isdigit() else 0) for r in rows if len(r) == 4)


def visible() -> tuple[str, ...]:
    """UUIDs of the GPUs that jobs may choose from: those that CUDA_VISIBLE_DEVICES names, or all.

    What cannot be found in the driver's list (a part of a GPU, by MIG) leaves no choice: CUDA takes the first word.
    """
    words = [word.strip() for word in os.environ.get(VISIBLE, ",".join(gpu.uuid for gpu in gpus())).split(",")]
    if not gpus() or words[0] in ("", NOBODY):
        return ()
    numbered = os.environ.get(ORDER, BY_BUS) == BY_BUS  # as in the driver's list
    found = [
        gpu.uuid
        for word in words
        for number, gpu in enumerate(gpus())
        if word and (gpu.uuid.startswith(word) or (word == str(number) and numbered))
    ]
    return tuple(found) if len(set(found)) == len(words) else (words[0],)


def usable(device: str) -> int:
    """How many GPUs of this machine jobs with this `train.device` can use."""
    if device in ("cpu", "mps"):
        return int(device == "mps")
    return min(1, len(gpus())) if ":" in device else len(visible())


def takes_gpu(device: str) -> bool:
    """Whether a job with this `train.device` takes a GPU if it runs here: the workflow reserves one for it."""
    return bool(visible()) if device == "auto" else device != "cpu"


def lease(jobs: int, wait: float = PATIENCE, folder: Path = FOLDER) -> None:
    """Make one GPU of this machine visible to this process, for at most `jobs` processes at a time.

    Of several that a scheduler or a person has chosen (CUDA_VISIBLE_DEVICES) it is one; a single one is kept and not
    leased. Nothing happens where a lease is held already, or where there is no GPU; a job of SLURM has what SLURM gives
    it, or none. Must come before the first question to CUDA, which reads the variable once.
    """
    free = visible()
    if not free or (VISIBLE in os.environ and len(free) == 1):
        return
    if SCHEDULED in os.environ and VISIBLE not in os.environ:
        os.environ[VISIBLE] = ""  # the scheduler has given this job none
        return
    _share(folder)
    end = time.monotonic() + wait
    while True:
        for slot in range(jobs):  # an empty GPU before one that is shared
            for uuid in free:
                if (lock := _taken(folder / f"{uuid}.{slot}")) is not None:
                    _LEASES.append(lock)
                    os.environ[VISIBLE] = uuid
                    return
        if time.monotonic() > end:
            raise FdamedError(
                f"all {len(free)} GPUs are in use by other jobs of fdamed ({jobs} each)",
                str(folder),
                "Run fewer jobs at a time (snakemake --resources gpu=N), raise `train.jobs_per_gpu`, or name a GPU: "
                "`train.device: cuda:1`.",
            )
        time.sleep(0.5)


def _share(folder: Path) -> None:
    """Make a folder in which every user can lock, and nobody can remove what belongs to another."""
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777)


def _taken(path: Path) -> int | None:
    """The lock, if it is free; all users may lock it, so nothing is written to it, and nobody's umask holds."""
    try:
        lock = _opened(path)
    except PermissionError:  # another user is just making it
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _opened(path: Path) -> int:
    """The file; another user's is opened without O_CREAT, which Linux forbids in a folder of all users."""
    with suppress(FileExistsError):
        lock = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        os.fchmod(lock, 0o644)
        return lock
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
