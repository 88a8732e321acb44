"""Published results are shown beside ours, cell by cell."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fdamed.config.study import Published
from fdamed.report.paper_tables import cell_table, published_cells, within


def record(run: str, curve: list[float]) -> SimpleNamespace:
    return SimpleNamespace(
        run=run, target="T", rounds=tuple({"round": i, "test/acc": v} for i, v in enumerate(curve, 1))
    )


def test_the_last_round_is_a_mean_over_seeds() -> None:
    published = Published(source="a paper", values={"falls": 60.0, "absent": 50.0})
    runs = [record("falls", [0.9, 0.8, 0.7, 0.5, 0.4, 0.3]), record("falls", [0.7, 0.6, 0.7, 0.5, 0.4, 0.5])]
    falls, absent = published_cells(published, ["T"], runs)
    assert falls.last.mean == pytest.approx(40.0)
    assert falls.apart == pytest.approx(-20.0)
    assert absent.last.mean is None and absent.apart is None
    assert cell_table([falls, absent])["seeds"].tolist() == [2, 0]


def test_each_target_has_its_own_figure_if_the_paper_gives_one() -> None:
    published = Published(source="a paper", values={"gp": {"T": 70.0, "U": 71.0}})
    found = published_cells(published, ["T", "U"], [record("gp", [0.5, 0.72])])
    assert [(c.target, c.paper, c.last.mean) for c in found] == [("T", 70.0, pytest.approx(72.0)), ("U", 71.0, None)]


def test_the_last_round_is_the_last_that_was_evaluated() -> None:
    published = Published(source="a paper", values={"falls": 60.0})
    sparse = [None, None, 0.8, None, 0.5, None]
    (cell,) = published_cells(published, ["T"], [record("falls", sparse)])
    assert cell.last.n == 1 and cell.last.mean == pytest.approx(50.0)


def test_a_result_counts_as_reproduced_within_two_and_a_half_points() -> None:
    published = Published(source="a paper", values={"near": 60.0, "far": 50.0, "absent": 90.0})
    assert within(published_cells(published, ["T"], [record("near", [0.4, 0.62]), record("far", [0.4, 0.45])])) == (
        1,
        2,
    )
