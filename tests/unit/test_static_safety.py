"""The source itself: no call that executes what a file says, no relaxed check, no patient's file in the repository."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fdamed.core.environment import CHOSEN, FORBIDDEN, REQUIRED, secure

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*(ROOT / "fdamed").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])
WORKFLOW = [ROOT / "Snakefile", *sorted((ROOT / "workflow").rglob("*.smk"))]
CALLS = {
    "eval": "executes text",
    "exec": "executes text",
    "compile": "makes text executable",
    "__import__": "imports by a name that may come from a file",
    "pickle.load": "executes what a file says",
    "pickle.loads": "executes what a file says",
    "pickle.Unpickler": "executes what a file says",
    "cloudpickle.load": "executes what a file says",
    "dill.load": "executes what a file says",
    "joblib.load": "executes what a file says",
    "shelve.open": "executes what a file says",
    "marshal.loads": "executes what a file says",
    "pd.read_pickle": "executes what a file says",
    "pandas.read_pickle": "executes what a file says",
    "torch.jit.load": "executes what a file says",
    "torch.export.load": "falls back to unpickling",
    "torch.hub.load": "downloads and executes",
    "yaml.load": "makes objects",
    "yaml.full_load": "makes objects",
    "yaml.unsafe_load": "makes objects",
    "os.system": "goes through a shell",
    "os.popen": "goes through a shell",
    "subprocess.getoutput": "goes through a shell",
    "tempfile.mktemp": "is a race",
    "mlflow.autolog": "writes paths and names",
    "mlflow.log_input": "writes paths and column names",
}
METHODS = {"extractall": "may leave its folder", "read_pickle": "executes what a file says"}
ARGUMENTS = {("shell", True), ("allow_pickle", True), ("verify", False), ("weights_only", False), ("trust_code", True)}


def dotted(node: ast.expr) -> str:
    """`torch.load` of the call `torch.load(...)`; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def dangers(text: str, validates: bool = True) -> list[str]:
    """Line and reason of every dangerous thing in a Python source."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assert) and validates:
            found.append(f"{node.lineno}: assert is no check, python -O leaves it out")
        if isinstance(node, ast.ImportFrom) and node.module in ("pickle", "marshal", "shelve", "dill", "cloudpickle"):
            found.append(f"{node.lineno}: {node.module}")
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            found.append(f"{node.lineno}: a bare except hides everything")
        if not isinstance(node, ast.Call):
            continue
        name, keywords = dotted(node.func), {k.arg: k.value for k in node.keywords}
        if name in CALLS:
            found.append(f"{node.lineno}: {name} {CALLS[name]}")
        if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            found.append(f"{node.lineno}: {node.func.attr} {METHODS[node.func.attr]}")
        for key, value in keywords.items():
            if isinstance(value, ast.Constant) and (key, value.value) in ARGUMENTS:
                found.append(f"{node.lineno}: {key}={value.value}")
        if name in ("torch.load", "np.load", "numpy.load"):
            key, safe = ("weights_only", True) if name == "torch.load" else ("allow_pickle", False)
            given = keywords.get(key)
            if not (isinstance(given, ast.Constant) and given.value is safe):
                found.append(f"{node.lineno}: {name} without {key}={safe}")
        if name in ("Image.open", "Pictures.open") and "formats" not in keywords:
            found.append(f"{node.lineno}: {name} without an allow-list of formats")
    return found


@pytest.mark.parametrize(
    "line",
    [
        "eval(x)",
        "import torch\ntorch.load(p)",
        "torch.load(p, weights_only=flag)",
        "np.load(p)",
        "np.load(p, allow_pickle=True)",
        "pickle.loads(b)",
        "from pickle import loads",
        "yaml.load(f, Loader=yaml.Loader)",
        "subprocess.run(c, shell=True)",
        "tarfile.open(p).extractall()",
        "requests.get(u, verify=False)",
        "assert x",
        "frame = pd.read_pickle(p)",
        "Image.open(p)",
        "try:\n pass\nexcept:\n pass",
    ],
)
def test_the_search_is_not_blind(line: str) -> None:
    assert dangers(line)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_source_executes_what_a_file_says(path: Path) -> None:
    assert dangers(path.read_text(encoding="utf-8"), validates=path.is_relative_to(ROOT / "fdamed")) == []


@pytest.mark.parametrize("path", WORKFLOW, ids=lambda p: p.name)
def test_no_rule_runs_code_from_elsewhere_or_an_unquoted_path(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for word in ("script:", "notebook:", "wrapper:", "run:", "retries:"):
        assert not [line for line in text.splitlines() if line.strip().startswith(word)], word
    for name in ("{input}", "{output}", "{log}", "{params.runs}", "{wildcards.run}"):
        assert name not in text, f"{name} in a shell command needs :q"


def test_the_environment_is_safe_before_anything_is_imported() -> None:
    """In a process of its own, with an environment that asks for the opposite."""
    hostile = dict.fromkeys(FORBIDDEN, "1") | dict.fromkeys(REQUIRED, "maybe")
    hostile |= {"MLFLOW_HTTP_REQUEST_TIMEOUT": "9"}
    code = (
        "import json, os, sys\nfrom fdamed.cli.main import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit:\n    pass\n"
        "heavy = [m for m in ('torch', 'pandas', 'mlflow', 'monai', 'yaml', 'pydantic') if m in sys.modules]\n"
        "print(json.dumps([dict(os.environ), heavy]))"
    )
    environment = {k: v for k, v in os.environ.items() if k not in CHOSEN} | hostile
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    found, heavy = json.loads(done.stdout.splitlines()[-1])
    assert {name: found.get(name) for name in REQUIRED} == REQUIRED
    assert not set(FORBIDDEN) & set(found)
    assert found["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "1" and found["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "9"
    assert heavy == []


def test_the_settings_are_those_that_the_libraries_read() -> None:
    fresh: dict[str, str] = {}
    secure(fresh)
    assert fresh == REQUIRED | CHOSEN
    where = {"TORCH": "torch/serialization.py", "MONAI": "monai/utils/module.py"}
    where |= {"CUBLAS": "torch/backends/cuda/__init__.py"}
    where |= {"MLFLOW": "mlflow/environment_variables.py", "DO": "mlflow/telemetry/utils.py"}
    for name in fresh.keys() - {"CUDA_DEVICE_ORDER"}:  # the driver reads it, of which there is no text here
        library, _, file = where[name.split("_")[0]].partition("/")
        found = importlib.util.find_spec(library)
        assert found is not None and found.origin is not None
        assert name in (Path(found.origin).parent / file).read_text(encoding="utf-8"), name


def test_only_its_owner_can_enter_what_stays_in_the_hospitals(tmp_path: Path) -> None:
    from fdamed.core.files import private

    before = os.umask(0o022)
    try:
        folder = private(tmp_path / "results" / "demo" / "clients")
        assert folder.stat().st_mode & 0o777 == 0o700 and folder.parent.stat().st_mode & 0o777 == 0o755
        folder.chmod(0o750)
        assert private(folder).stat().st_mode & 0o777 == 0o750, "what the owner has opened stays open"
    finally:
        os.umask(before)


# --- the repository ---


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, cwd=ROOT, check=False)
    if listed.returncode:
        pytest.skip("not a git repository")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def test_the_repository_holds_no_radiograph_and_no_large_file() -> None:
    for path in tracked():
        head = path.read_bytes()[:132]
        assert path.stat().st_size <= 1 << 20, f"{path.name} is larger than 1 MB"
        assert head[128:132] != b"DICM" and not head.startswith(b"\xff\xd8\xff"), f"{path.name} is a radiograph"
        assert not head.startswith((b"PK\x03\x04", b"\x1f\x8b", b"SQLite")), f"{path.name} is an archive or a database"
        assert not head.startswith(b"\x89PNG") or ROOT / "docs" in path.parents, f"{path.name} is an image"
