"""The digest of the code behind a result: it changes with what can change the result, and with nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fdamed.config.loader import catalog
from fdamed.config.runs import Run
from fdamed.core import provenance
from fdamed.core.provenance import code_behind, digest_code, digest_package
from fdamed.pipeline import fingerprint as training

PACKAGE = Path(provenance.__file__).parents[1]


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package whose code can be edited."""
    place = tmp_path / "fdamed"
    shutil.copytree(PACKAGE, place, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(provenance, "PACKAGE", place)
    monkeypatch.setattr(training, "PACKAGE", place)
    forget()
    yield place
    forget()


def forget() -> None:
    provenance.tree_of.cache_clear()
    digest_package.cache_clear()


def digests(*methods: str) -> list[str]:
    forget()
    return [training.training_code(Run(method=name), catalog()) for name in methods]


def test_editing_one_method_does_not_retrain_another(copy: Path) -> None:
    before = digests("fedsr", "fedavg", "gp")
    (copy / "methods" / "fedsr.py").open("a").write("\nCHANGED = 1\n")
    after = digests("fedsr", "fedavg", "gp")
    assert after[0] != before[0] and after[1:] == before[1:]


def test_editing_a_comment_or_a_docstring_retrains_nothing(copy: Path) -> None:
    before = digests("fedavg", "fada"), digest_package()
    for file in copy.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace('"""', '"""Another word. ', 1) + "\n# a comment\n", encoding="utf-8")
    assert (digests("fedavg", "fada"), digest_package()) == before


def test_moving_a_module_retrains_nothing(copy: Path) -> None:
    before = digests("fedavg")
    (copy / "ops" / "aggregation.py").rename(copy / "ops" / "sums.py")
    for file in copy.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace("fdamed.ops.aggregation", "fdamed.ops.sums"), encoding="utf-8")
    assert digests("fedavg") == before


def test_editing_the_core_retrains_every_method(copy: Path) -> None:
    before = digests(*sorted(catalog()))
    (copy / "core" / "rng.py").open("a").write("\nCHANGED = 1\n")
    assert all(a != b for a, b in zip(digests(*sorted(catalog())), before, strict=True))


def test_a_package_of_a_method_is_in_its_digest(copy: Path) -> None:
    before = digests("fada", "kd3a")
    (copy / "methods" / "fada" / "attention.py").open("a").write("\nCHANGED = 1\n")
    after = digests("fada", "kd3a")
    assert after[0] != before[0] and after[1] == before[1]


def test_code_that_a_training_runs_is_behind_it_and_reports_are_not() -> None:
    behind = code_behind(training.CORE)
    assert {"fdamed.federation.runner", "fdamed.training.dp_sgd", "fdamed.config.study", "fdamed.data.loader"} <= behind
    assert "fdamed.core.parts" in behind, "decides how many images clients may declare"
    assert "fdamed.core.counts" not in behind
    assert not any(name.startswith(("fdamed.report", "fdamed.cli", "fdamed.tracking")) for name in behind)


def test_no_code_of_evaluation_report_or_training_makes_data_again() -> None:
    stages = ("phantom", "ingest", "split", "cache", "leakage", "partition")
    rooms = {name.split(".")[1] for name in code_behind(*(f"fdamed.cli.commands.{stage}" for stage in stages))}
    assert rooms == {"cli", "config", "core", "data", "pipeline"}


def test_every_exception_is_a_module_that_exists() -> None:
    assert all(provenance.tree_of(name) for name in (*provenance.NO_RESULT, *training.DECIDES_DATA))
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        digest_code("fdamed.nowhere")
