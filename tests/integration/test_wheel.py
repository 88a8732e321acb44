"""The wheel has everything that `fdamed` needs: installed elsewhere, it plans a study from an empty folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("pyproject.toml", "README.md", "LICENSE", "Snakefile", "config", "envs", "profiles", "workflow", "fdamed")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves folders beside the sources."""
    pytest.importorskip("setuptools", minversion="77")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    command = [sys.executable, "-c", f"from setuptools import build_meta; build_meta.build_wheel({str(out)!r})"]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (found,) = out.glob("*.whl")
    return found


def test_the_wheel_has_every_file_of_the_project_as_a_file(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for part in ("Snakefile", "workflow", "profiles", "config", "envs"):
        files = [p for p in (ROOT / part).rglob("*") if p.is_file()] or [ROOT / part]
        assert [str(p) for p in files if f"fdamed/project/{p.relative_to(ROOT)}" not in names] == []
    code = {str(p.relative_to(ROOT)) for p in (ROOT / "fdamed").rglob("*.py")}
    assert code <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_fdamed_works_from_an_empty_folder_where_only_the_wheel_is_installed(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own that sees the dependencies of this one, but not the clone."""
    place, folder = tmp_path / "venv", tmp_path / "empty"
    folder.mkdir()
    venv.create(place, with_pip=False)
    python = place / "bin/python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    zipfile.ZipFile(wheel).extractall(site)  # what pip does with a wheel of pure Python
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (place / "bin/fdamed").write_text(f"#!{python}\nimport sys\nfrom fdamed.cli.main import main\nsys.exit(main())\n")
    (place / "bin/fdamed").chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST", "FDAMED"))}
    environment = kept | {"PATH": f"{place}/bin{os.pathsep}{kept['PATH']}"}

    def run(*words: str, where: Path = folder) -> str:
        done = subprocess.run(words, cwd=where, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    used = run(str(python), "-c", "import fdamed; print(fdamed.__file__)").strip()
    assert Path(used).is_relative_to(place)
    run("fdamed", "new", "first", "--layout", "demo")
    planned = run(str(python), "-m", "snakemake", "-n", "--cores", "1", where=folder / "first")
    jobs = dict(line.split() for line in planned.splitlines() if len(line.split()) == 2)
    assert jobs["phantom"] == "1" and jobs["report_page"] == "1"
    run("fdamed", "phantom", "--config", "config/config.yaml", "--help", where=folder / "first")
