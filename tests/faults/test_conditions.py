"""A checkpoint made under other conditions is refused with the reason; with the old conditions the run resumes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from fdamed.pipeline import fingerprint
from tests.faults import studies
from tests.faults.interrupted import finish, single

RUN = "scaffold"
Change = Callable[[Path, pytest.MonkeyPatch], None]


def settings(folder: Path, patch: pytest.MonkeyPatch) -> None:
    raw = yaml.safe_load((folder / "study.yaml").read_text())
    raw["train"]["target"]["lr"] = 0.5
    patch.setattr(studies, "CONFIG", "other.yaml")
    (folder / "other.yaml").write_text(yaml.safe_dump(raw))


def another_torch(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "__version__", "2.12.0")


def another_source(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fingerprint, "training_code", lambda *parts: "0123456789ab")


def another_cpu(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")


@pytest.mark.parametrize(
    ("change", "key"),
    [(settings, "settings"), (another_torch, "torch"), (another_source, "source"), (another_cpu, "cpu")],
)
def test_other_settings_versions_or_code_are_refused_with_the_reason(
    cut: Path, expected, capfd, change: Change, key: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        change(cut, patch)
        assert studies.fdamed(cut, *single(RUN)) == 2
    stderr = capfd.readouterr().err
    assert f"the checkpoint was made under other conditions ({key}: " in stderr and " then, " in stderr
    assert finish(cut, RUN) == expected


def test_another_number_of_threads_is_refused(cut: Path, expected, capfd) -> None:
    assert studies.fdamed(cut, *single(RUN), "--threads", "2") == 2
    assert "(threads: 1 then, 2 now)" in capfd.readouterr().err
    torch.set_num_threads(1)
    assert finish(cut, RUN) == expected


def test_other_data_are_refused(cut: Path, capfd) -> None:
    raw = yaml.safe_load((cut / "study.yaml").read_text())
    raw["split"]["labeled"] = 10
    (cut / "study.yaml").write_text(yaml.safe_dump(raw))
    assert studies.fdamed(cut, "partition") == 0
    capfd.readouterr()
    assert studies.fdamed(cut, *single(RUN)) == 2
    assert "under other conditions (data: " in capfd.readouterr().err
