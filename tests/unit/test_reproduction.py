"""A paper's figures stand beside ours, cell by cell."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fdamed.config import Published
from fdamed.evaluate.reproduction import cells, table


def record(run: str, curve: list[float]) -> SimpleNamespace:
    return SimpleNamespace(
        run=run, target="T", rounds=tuple({"round": i, "test/acc": v} for i, v in enumerate(curve, 1))
    )


def test_last_round_last_five_and_crossing_are_worked_out_over_seeds() -> None:
    published = Published(source="a paper", values={"falls": 60.0, "absent": 50.0})
    runs = [record("falls", [0.9, 0.8, 0.7, 0.5, 0.4, 0.3]), record("falls", [0.7, 0.6, 0.7, 0.5, 0.4, 0.5])]
    falls, absent = cells(published, ["T"], runs)
    assert falls.last.mean == pytest.approx(40.0) and falls.last_five.mean == pytest.approx((54 + 54) / 2)
    assert falls.apart == pytest.approx(-20.0)
    assert falls.crossed == 4  # means 80, 70, 70, 50: the fourth round is the first below 60
    assert absent.last.mean is None and absent.apart is None and absent.crossed is None
    assert table([falls, absent])["seeds"].tolist() == [2, 0]


def test_each_target_has_its_own_figure_if_the_paper_gives_one() -> None:
    published = Published(source="a paper", values={"gp": {"T": 70.0, "U": 71.0}})
    found = cells(published, ["T", "U"], [record("gp", [0.5, 0.72])])
    assert [(c.target, c.paper, c.last.mean) for c in found] == [("T", 70.0, pytest.approx(72.0)), ("U", 71.0, None)]


def test_rounds_that_were_not_judged_shift_nothing() -> None:
    published = Published(source="a paper", values={"falls": 60.0})
    sparse = [None, None, None, None, 0.8, None, None, None, None, 0.7, None, None, None, None, 0.5]
    (cell,) = cells(published, ["T"], [record("falls", sparse)])
    assert cell.crossed == 15 and cell.last_five.mean == pytest.approx(50.0)
