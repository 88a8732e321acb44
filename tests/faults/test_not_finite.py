"""A loss or a weight that is not finite: the run stops with the reason, and no such number is in any file."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fdamed.training.optimizer import Optimizer
from tests.faults import studies
from tests.faults.interrupted import finish, single

RUN = "scaffold"
FEW, MANY = 2, 20


def numbers(folder: Path) -> list[torch.Tensor]:
    """Every tensor in every file of the run and of its hospitals."""
    found = []
    for file in (folder / "results").rglob("*.safetensors"):
        found += [t.float() for t in load_file(file).values()]
    for file in (folder / "results").rglob("checkpoint*.bin"):
        found += arrays(studies.state_of(file))
    return found


def arrays(state: bytes) -> list[torch.Tensor]:
    """The tensors of an encoded message, in the order of its header."""
    (n,) = struct.unpack("<I", state[4:8])
    at, out = 8 + n, []
    for field in json.loads(state[8 : 8 + n])["fields"]:
        array = np.frombuffer(state, field["dtype"], int(np.prod(field["shape"])), at)
        out.append(torch.from_numpy(array.astype(np.float64)))
        at += array.nbytes
    return out


@pytest.mark.parametrize("nth", [*range(FEW), *(pytest.param(n, marks=pytest.mark.faults) for n in range(FEW, MANY))])
def test_no_number_that_is_not_finite_is_saved_and_the_run_can_go_on(
    prepared: Path, expected, tmp_path: Path, monkeypatch, capsys, nth: int
) -> None:
    folder = studies.copy(prepared, tmp_path / "study")
    rng = np.random.default_rng(nth)
    at, bad = int(rng.integers(1, 45)), (float("nan"), float("inf"), -float("inf"))[nth % 3]
    step, count = Optimizer.step, [0]

    def poisoned(self: Optimizer, *given: object) -> None:
        count[0] += 1
        if count[0] == at:
            self._model.grad[int(rng.integers(len(self._model.grad)))] = bad
        step(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Optimizer, "step", poisoned)
        code = studies.fdamed(folder, *single(RUN))
    stderr = capsys.readouterr().err
    assert count[0] >= at
    assert "not finite" in stderr
    found = numbers(folder)
    assert found and all(torch.isfinite(t).all() for t in found)
    place = studies.place_of(folder, RUN)
    if code == 2:
        assert not (place / "done").exists()
        assert finish(folder, RUN) == expected
    else:  # the hospital's answer was left out, by name, and the round went on without it
        assert code == 0
        assert "not finite" in (place / "absences.jsonl").read_text()
