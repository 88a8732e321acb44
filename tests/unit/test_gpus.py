"""Which GPU a job gets: one that no other job has, until it ends."""

from __future__ import annotations

import inspect
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fdamed.core import gpus as here
from fdamed.core.environment import secure
from fdamed.core.errors import FdamedError

ASK = """
import os, sys
from pathlib import Path
from fdamed.core.errors import FdamedError
from fdamed.core.gpus import lease
try:
    lease(int(sys.argv[1]), wait=float(sys.argv[2]), folder=Path(sys.argv[3]))
    print(os.environ.get("CUDA_VISIBLE_DEVICES", "unset"), flush=True)
    sys.stdin.read()
except FdamedError as error:
    print(error.what, flush=True)
"""


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch) -> Iterator[Path]:
    """A machine whose driver lists two GPUs."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    rows = ("GPU-a, NVIDIA A100-SXM4-40GB, 550.54.15, 40960", "GPU-b, Tesla V100-PCIE-16GB, 550.54.15, 16384")
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    here.gpus.cache_clear()
    yield tmp_path
    here.gpus.cache_clear()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """Starts a process that leases a GPU -> the process, and which one it got."""
    started: list[subprocess.Popen[str]] = []

    def start(jobs: int = 1, wait: float = 0.0) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-c", ASK, str(jobs), str(wait), str(tmp_path / "locks")]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.communicate()


def test_every_job_gets_a_gpu_of_its_own_and_gives_it_back_when_it_ends(two_gpus: Path, job) -> None:
    first, a = job()
    _, b = job()
    assert {a, b} == {"GPU-a", "GPU-b"}
    assert job()[1] == "all 2 GPUs are in use by other jobs of fdamed (1 each)"
    first.kill()  # the lock ends with the process, however it ends
    first.wait()
    assert job(wait=10.0)[1] == a


def test_jobs_share_a_gpu_where_the_configuration_says_so_but_an_empty_one_comes_first(two_gpus: Path, job) -> None:
    assert [job(jobs=2)[1] for _ in range(4)] == ["GPU-a", "GPU-b", "GPU-a", "GPU-b"]
    assert "in use" in job(jobs=2)[1]


def test_what_a_scheduler_or_a_person_has_chosen_is_kept(two_gpus: Path, job, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert job()[1] == "1"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert job()[1] == ""  # SLURM has given this job none


@pytest.mark.parametrize(
    ("chosen", "got"),
    [
        ("1,0", ["GPU-b", "GPU-a"]),
        ("GPU-a,GPU-b", ["GPU-a", "GPU-b"]),
        ("MIG-x,MIG-y", ["MIG-x,MIG-y"] * 2),  # not in the driver's list: CUDA takes the first
        ("", ["", ""]),
        ("-1", ["-1", "-1"]),
    ],
)
def test_of_several_that_were_chosen_a_job_gets_one(two_gpus: Path, job, chosen, got, monkeypatch) -> None:
    """An allocation of several GPUs in which Snakemake starts the jobs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert [job()[1] for _ in range(2)] == got


def test_numbers_in_another_order_than_the_drivers_are_left_alone(two_gpus: Path, job, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert job()[1] == "0,1"


def test_every_user_can_lock_a_gpu_whatever_the_umask_of_the_first(two_gpus: Path, job) -> None:
    before = os.umask(0o077)
    try:
        assert job()[1] == "GPU-a"
    finally:
        os.umask(before)
    folder = two_gpus / "locks"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o644]


def test_a_lock_that_another_user_is_just_making_counts_as_taken(two_gpus: Path, monkeypatch) -> None:
    """Its mode does not yet let anybody in: what a user without root's rights meets."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def refused(path: object, *_: object) -> int:
        raise PermissionError(path)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(FdamedError, match="all 2 GPUs are in use"):
        here.lease(1, wait=0.0, folder=two_gpus / "locks")


def test_locks_do_not_depend_on_the_folder_for_temporary_files(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert inspect.signature(here.lease).parameters["folder"].default == Path("/tmp/fdamed-gpus")


@pytest.mark.parametrize(
    ("device", "chosen", "count"),
    [
        ("auto", None, 2), ("cuda", None, 2), ("cuda:1", None, 1), ("mps", None, 1), ("cpu", None, 0),
        ("auto", "1", 1), ("cuda", "0,1", 2), ("auto", "", 0), ("cuda", "MIG-x,MIG-y", 1), ("cuda:1", "0,1", 1),
    ],
)  # fmt: skip
def test_as_many_jobs_run_as_there_are_gpus_to_choose_from(two_gpus: Path, device, chosen, count, monkeypatch) -> None:
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert here.usable(device) == count


def test_a_gpu_whose_memory_the_driver_does_not_know_is_one(two_gpus: Path) -> None:
    program = two_gpus / "bin" / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU-c, NVIDIA GB10, 580.95.05, [N/A]'\n")
    here.gpus.cache_clear()
    assert [(gpu.uuid, gpu.memory_mb) for gpu in here.gpus()] == [("GPU-c", 0)]


def test_without_a_driver_there_is_nothing_to_lease(tmp_path: Path, job, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert job()[1] == "unset"


@pytest.mark.parametrize(
    ("device", "reserved"), [("cpu", False), ("auto", True), ("cuda", True), ("cuda:1", True), ("mps", True)]
)
def test_the_workflow_reserves_a_gpu_for_whatever_takes_one(two_gpus: Path, device: str, reserved: bool) -> None:
    assert here.takes_gpu(device) == reserved


def test_auto_reserves_none_where_there_is_none(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    here.gpus.cache_clear()
    assert not here.takes_gpu("auto")
    here.gpus.cache_clear()


def test_the_driver_tells_model_version_and_memory(two_gpus: Path) -> None:
    a, _ = here.gpus()
    assert (a.name, a.driver, a.memory_mb) == ("NVIDIA A100-SXM4-40GB", "550.54.15", 40960)


def test_sums_on_a_gpu_are_made_repeatable_before_torch_starts() -> None:
    environment: dict[str, str] = {}
    secure(environment)
    assert environment["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


RULES = Path(__file__).resolve().parents[2] / "workflow" / "rules"
LEASING = ("federate", "evaluate", "advise", "features", "attributes", "membership")


@pytest.mark.parametrize("command", LEASING)
def test_every_rule_whose_command_takes_a_gpu_reserves_one(command: str) -> None:
    text = "\n".join(path.read_text() for path in RULES.glob("*.smk"))
    after = [part.split("rule ")[0] for part in text.split("    resources:")[1:]]
    calls = [part for part in after if f"fdamed {command} " in part or "fdamed {params.commands}" in part]
    assert calls and all("gpu=GPU" in part.split("params:")[0] for part in calls)


def test_a_lead_over_a_network_reserves_none_for_it_only_aggregates() -> None:
    assert "gpu" not in (RULES / "network.smk").read_text()


def test_a_device_that_is_not_there_is_named(monkeypatch) -> None:
    from types import SimpleNamespace

    from fdamed.pipeline.devices import device

    def wanted(name: str):
        return SimpleNamespace(train=SimpleNamespace(device=name, jobs_per_gpu=1))

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert device(wanted("cuda:1")) == "cuda:1"
    with pytest.raises(FdamedError, match="no GPU 2, but 2 in all"):
        device(wanted("cuda:2"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for name, what in (("cuda", "no CUDA device"), ("cuda:0", "no CUDA device"), ("mps", "no Metal device")):
        with pytest.raises(FdamedError, match=what):
            device(wanted(name))


def test_the_fingerprint_has_what_decides_bits_on_a_gpu(two_gpus: Path, monkeypatch) -> None:
    from types import SimpleNamespace

    from fdamed.pipeline.devices import facts

    config = SimpleNamespace(train=SimpleNamespace(device="cuda:0", jobs_per_gpu=1))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda name: "NVIDIA A100")
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: 91002)
    found = facts(config, "tf32")  # type: ignore[arg-type]
    assert found["device"] == "cuda"  # on another GPU of the same model a run may resume
    assert found["gpu"] | {"cuda": None} == {
        "model": "NVIDIA A100", "driver": "550.54.15", "cuda": None, "cudnn": 91002, "tf32": True, "override": "",
    }  # fmt: skip
    config.train.device = "cpu"
    assert facts(config, "float32") == {"device": "cpu"}  # type: ignore[arg-type]
