"""The allowed, pinned and installed versions have no known vulnerability that matters here."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]


def requirements(*lines: str) -> dict[str, Requirement]:
    bare = [line.partition("#")[0].strip() for line in lines]
    parsed = [Requirement(line) for line in bare if line]
    return {canonicalize_name(r.name): r for r in parsed}


FLOORS = requirements(*(ROOT / "envs" / "floors.txt").read_text().splitlines())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK, DEV = (requirements(*(ROOT / "envs" / f"{n}.lock").read_text().splitlines()) for n in ("requirements", "dev"))


def lowest(requirement: Requirement) -> Version:
    """The oldest version that a requirement names; a `>` counts as its own bound."""
    bounds = [Version(s.version) for s in requirement.specifier if s.operator in (">=", ">", "==", "~=")]
    assert bounds, f"{requirement} has no lower bound"
    return max(bounds)


def excludes(requirement: Requirement, floor: Requirement) -> bool:
    """Whether no version below the floor satisfies the requirement."""
    (bound,) = floor.specifier
    strict = bound.operator == ">"
    own = [s.operator for s in requirement.specifier if Version(s.version) == lowest(requirement)]
    above = lowest(requirement) > Version(bound.version)
    return above or (lowest(requirement) == Version(bound.version) and (not strict or ">" in own))


def test_the_floors_name_what_reads_files_of_others() -> None:
    assert set(FLOORS) >= {"torch", "monai", "mlflow", "pydicom", "pillow", "pyarrow", "safetensors", "pyyaml"}


@pytest.mark.parametrize("name", FLOORS)
def test_no_version_below_its_floor_is_allowed_pinned_or_installed(name: str) -> None:
    allowed = requirements(*PROJECT["dependencies"])
    assert excludes(allowed[name], FLOORS[name]), f"pyproject.toml allows {allowed[name]}, the floor is {FLOORS[name]}"
    pinned = str(lowest(LOCK[name]))
    assert FLOORS[name].specifier.contains(pinned), f"the lock pins {name} {pinned}, the floor is {FLOORS[name]}"
    assert FLOORS[name].specifier.contains(importlib.metadata.version(name))


def test_a_version_below_its_floor_would_be_seen() -> None:
    floor = Requirement("pillow>=12.3.0")
    assert not excludes(Requirement("pillow>=12.2.9"), floor) and excludes(Requirement("pillow>=12.3.0"), floor)
    strict = Requirement("pyarrow>23.0.0")
    assert not excludes(Requirement("pyarrow>=23.0.0"), strict) and excludes(Requirement("pyarrow>23.0.0"), strict)


def test_the_lock_pins_every_dependency_to_what_the_project_allows() -> None:
    extra = PROJECT["optional-dependencies"]
    runs = PROJECT["dependencies"] + extra["privacy"] + extra["export"]
    for group, lock in ((runs, LOCK), (extra["dev"], LOCK | DEV)):
        for name, requirement in requirements(*group).items():
            pins = [s for s in lock[name].specifier if s.operator == "=="]
            assert pins and requirement.specifier.contains(pins[0].version, prereleases=True), name


def test_what_only_tests_and_linters_need_is_installed_by_them() -> None:
    assert not LOCK.keys() & DEV.keys()
    assert DEV.keys() >= {"pytest", "mypy", "ruff", "hypothesis"} and not LOCK.keys() & {"pytest", "mypy", "ruff"}


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"dependencies": [{"name": "a", "version": "1", "vulns": []}]}, 0),
        ({"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["2"]}]}]}, 1),
        ({"dependencies": [{"name": "a", "skip_reason": "not found"}]}, 3),
        ({"dependencies": []}, 3),
        ({}, 3),
    ],
)
def test_an_audit_that_could_not_ask_does_not_say_that_all_is_well(answer: object, code: int, tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text(json.dumps(answer))
    command = [sys.executable, str(ROOT / ".ci" / "audited.py"), str(tmp_path / "answer.json")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == code
