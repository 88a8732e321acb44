"""Runs every command of the documentation, page by page, in a small copy of the project.

`tests/support/scratch_projects.py` makes the copy. NOT_RUN lists commands that cannot run, with the reason; SHORTER
adds arguments that make a command short. Cheap commands run by default, the others with `make test-docs`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from tests.support import scratch_projects as scratch
from tests.support.documented import REFUSED, ROOT, commands

IN_CI = "talks to SLURM: tests/slurm runs it on a real one (`.ci/slurm`)"
APART = "needs hospitals; tests/network runs it on loopback (`make test-network`)"
NETWORK = "installs from the network; a test below checks that the extra exists"
NO_TOOL = "needs a tool and the network; tests/unit/test_front_door.py checks the files that it names"
NO_DATA = "needs the released images; the tests have six synthetic ones in this layout, too few for a study"
NO_SETS = "needs CIFAR-10 and SVHN; tests/integration/test_shipped_configs.py trains each run on small images"
NOT_RUN = {
    "pytest tests/contract tests/unit -k fedavgm": "tests the method that the reader has written",
    "pytest tests/contract tests/unit": "minutes, and most of `make test`",
    "FDAMED_REPIN=1 pytest -n 0 tests/contract/test_pinned_results.py -k fedavgm": "changes the pinned results",
    "fdamed doctor --config config/padchest.yaml": NO_DATA,
    "snakemake --cores 8 --configfile config/padchest.yaml": NO_DATA,
    "fdamed doctor --config config/vindr.yaml": NO_DATA,
    "snakemake --cores 8 --configfile config/vindr.yaml": NO_DATA,
    "snakemake --cores 2 --configfile config/papers/fedgtst/svhn.yaml": NO_SETS,
    "snakemake --cores 2 --configfile config/papers/fedgtst/svhn.yaml --config variant=clients_100": NO_SETS,
    "snakemake --cores 2 --configfile config/papers/fedgtst/participation.yaml": NO_SETS,
    "fdamed watch -- --workflow-profile profiles/slurm --configfile config/chexpert.yaml": IN_CI,
    "fdamed watch --recover -- --workflow-profile profiles/slurm --configfile config/chexpert.yaml": IN_CI,
    "fdamed watch --recover": IN_CI,
    "fdamed doctor --cluster --config config/chexpert.yaml": IN_CI,
    "fdamed doctor --config config/config.yaml --cluster --json": IN_CI,
    ".ci/slurm short": "installs SLURM and starts it; a job of its own in CI",
    "make test-slurm": "installs SLURM and starts it; minutes",
    "make test-docs": "is this file and would run itself",
    "make audit": "asks an advisory service, which may be unreachable: its exit code is not known here",
    "make bench": "takes an hour; the benchmarks that a page names run one by one",
    "pip install -r envs/requirements.lock": NETWORK,
    "pip install --no-deps .": "changes the environment of the tests; tests/integration/test_wheel.py installs",
    "pip install .": NETWORK,
    "pip wheel --no-deps .": "tests/integration/test_wheel.py builds the wheel",
    "conda env create -f envs/fdamed.yaml": NO_TOOL,
    "conda activate fdamed": NO_TOOL,
    "docker build -t fdamed .": NO_TOOL,
    'docker run --rm --user "$(id -u):$(id -g)" -v "$PWD":/study fdamed run --cores 4': NO_TOOL,
    "apptainer build fdamed.sif envs/fdamed.def": NO_TOOL,
    "apptainer run --nv fdamed.sif run --cores 4": NO_TOOL,
    "pip install 'fdamed[slurm]'": NETWORK,
    "pip install 'fdamed[privacy]'": NETWORK,
    "pip install 'fdamed[export]'": NETWORK,
    "pip install 'fdamed[network]'": NETWORK,
    "make network": NETWORK,
    "snakemake --sdm conda": "needs conda; tests/workflow/test_conda_environment.py checks what it is given",
    "make test-network": "installs NVIDIA FLARE and starts it; minutes",
    "fdamed invite --study study.yaml --kits kits --requests requests": APART,
    "fdamed join --invitation invitations/north --digest 0123456789ab --key north.key --data own.yaml": APART,
    "fdamed serve --site site.yaml": APART,
    "fdamed lead --study study.yaml --kits kits": APART,
    "snakemake --cores 2 --configfile study.yaml": APART,
    "snakemake --config transport=network": APART,
}
"""Command -> the reason why it is not run here."""
SERVERS = {
    "make mlflow": "http://127.0.0.1:5000/health",
    "fdamed mlflow": "http://127.0.0.1:5000/health",
    "fdamed mlflow --config config/config.yaml --port 5001": "http://127.0.0.1:5001/health",
}
"""Commands that do not end; they run until the address answers."""
FEW = "--side 32 --images 32 --repeats 1"
SHORTER = {
    "fdamed bench --config config/config.yaml": "--seconds 2",
    "fdamed bench --config config/chexpert.yaml --seconds 20 --json": "--seconds 2",
    "python -m benchmarks.fedgtst_figure2": "--rounds 2",
    "python -m benchmarks.fedgtst_regularizer": f"--root {scratch.FASHION} --seeds 1 --images 80",
    "python -m benchmarks.input": "--batches 2",
    "python -m benchmarks.phantom": "--patients 80 --size 64",
    "python -m benchmarks.methods --only fedprox scaffold fedsr --repeats 9 --sgd": FEW,
    "python -m benchmarks.methods --full --sgd": FEW,
    "python -m benchmarks.transfer": FEW,
    "python -m benchmarks.malicious_client --runs fedavg gp --seeds 0 1 2": "--runs fedavg --seeds 0",
    "python -m benchmarks.plain_pytorch": f"--root {scratch.FASHION} --noise 0.4",
}
"""Command -> arguments that make it short."""
SELECTED = {
    "make test": "tests/unit/test_messages.py",
    "make test-faults": "tests/faults/test_not_finite.py",
    "pytest -m faults": "tests/faults/test_not_finite.py",
}
"""Commands that run tests -> the tests that represent them (PYTEST_ADDOPTS)."""
NEEDS = {"make docs": "mkdocs", "make test-network SHORT=1": "nvflare", "python -m benchmarks.slow_line": "nvflare"}
"""Command -> the package that it needs or would install from the network; without the package it is skipped."""
LAST = ["make clean"]
"""Deletes the studies that other commands need."""
CHEAP = {
    "source .venv/bin/activate",
    "fdamed --help",
    "fdamed methods",
    "fdamed methods gp",
    "fdamed methods --json",
    "fdamed config",
    "fdamed config split.labeled",
    "fdamed config data.columns",
    "fdamed predict --modle edema_model image.dcm",
    'eval "$(fdamed completion bash)"',
    "$EDITOR profiles/slurm/config.yaml",
}
"""Need neither data nor results, and less than a few seconds."""
TIMEOUT = 1500


def to_run() -> list[str]:
    """Each command once, in the order of the pages."""
    lines = list(dict.fromkeys(line for _, line in commands() if line not in NOT_RUN))
    return [line for line in lines if line not in LAST] + LAST


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: git lists the files of the project")
    return scratch.make(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def with_data(project: Path) -> Path:
    """The project with synthetic data in place of downloads."""
    scratch.write_data(project)
    return project


def children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def shell(line: str) -> list[str]:
    """The shell that runs a line."""
    if "completion zsh" in line:
        if not shutil.which("zsh"):
            pytest.skip("zsh is not installed")
        return ["zsh", "-c", f"autoload -Uz compinit; compinit -u; {line}"]
    return ["bash", "-c", f"{line} {SHORTER.get(line, '')}"]


def run(line: str, project: Path) -> None:
    if line in NEEDS and not importlib.util.find_spec(NEEDS[line]):
        pytest.skip(f"{NEEDS[line]} is not installed")
    before, began = children(), time.monotonic()
    environment = scratch.environment(project) | ({"PYTEST_ADDOPTS": SELECTED[line]} if line in SELECTED else {})
    log = project / "home/output"
    with log.open("w") as output:
        process = subprocess.Popen(
            shell(line),
            cwd=project,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = until_answer(process, SERVERS[line]) if line in SERVERS else process.wait(timeout=TIMEOUT)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(timeout=60)
    note(line, children() - before, time.monotonic() - began)
    assert code == REFUSED.get(line, 0), f"{line}\nexit code {code}\n{log.read_text(errors='replace')[-6000:]}"


def note(line: str, cpu: float, wall: float) -> None:
    """Append the seconds of a command to the file FDAMED_DOCS_COSTS."""
    if place := os.environ.get("FDAMED_DOCS_COSTS"):
        with Path(place).open("a", encoding="utf-8") as costs:
            costs.write(f"{cpu:8.1f} {wall:8.1f}  {line}\n")


def until_answer(server: subprocess.Popen[bytes], address: str, seconds: float = 300) -> int:
    """0 as soon as the server answers 200; its own exit code if it ends before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        code = server.poll()
        if code is not None:
            return code or 1
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                return 0 if answer.status == 200 else 1
        except OSError:
            time.sleep(0.5)
    return 1


@pytest.mark.parametrize("line", [line for line in to_run() if line in CHEAP])
def test_a_cheap_command_of_the_documentation_runs(line: str, project: Path) -> None:
    run(line, project)


@pytest.mark.docs
@pytest.mark.parametrize("line", [line for line in to_run() if line not in CHEAP])
def test_a_command_of_the_documentation_runs(line: str, with_data: Path) -> None:
    run(line, with_data)


def test_every_declared_exception_is_used_by_a_page() -> None:
    documented = {line for _, line in commands()}
    for declared in (NOT_RUN, SERVERS, SHORTER, SELECTED, NEEDS, LAST, CHEAP, REFUSED):
        assert [line for line in declared if line not in documented] == []


def test_every_documented_command_runs_or_has_a_reason_not_to() -> None:
    documented = {line for _, line in commands()}
    assert len(documented) > 90 and set(to_run()) | set(NOT_RUN) == documented
    assert not set(to_run()) & set(NOT_RUN) and all(len(reason.split()) > 3 for reason in NOT_RUN.values())


def test_every_extra_that_a_page_installs_exists() -> None:
    named = {m for line in NOT_RUN for m in re.findall(r"fdamed\[(\w+)\]", line)}
    extras = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    assert named and named <= set(re.findall(r"^(\w+) = \[", extras, re.MULTILINE))
