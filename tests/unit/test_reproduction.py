"""A paper's figures stand beside ours, cell by cell."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fdamed.config.runs import Swept
from fdamed.config.study import Published
from fdamed.evaluation.reproduction import cells, table, within
from fdamed.report.sections import published as section


def record(run: str, curve: list[float]) -> SimpleNamespace:
    return SimpleNamespace(
        run=run, target="T", rounds=tuple({"round": i, "test/acc": v} for i, v in enumerate(curve, 1))
    )


def test_the_last_round_is_a_mean_over_seeds() -> None:
    published = Published(source="a paper", values={"falls": 60.0, "absent": 50.0})
    runs = [record("falls", [0.9, 0.8, 0.7, 0.5, 0.4, 0.3]), record("falls", [0.7, 0.6, 0.7, 0.5, 0.4, 0.5])]
    falls, absent = cells(published, ["T"], runs)
    assert falls.last.mean == pytest.approx(40.0)
    assert falls.apart == pytest.approx(-20.0)
    assert falls.curve[4] == pytest.approx(50.0)
    assert absent.last.mean is None and absent.apart is None
    assert table([falls, absent])["seeds"].tolist() == [2, 0]


def test_each_target_has_its_own_figure_if_the_paper_gives_one() -> None:
    published = Published(source="a paper", values={"gp": {"T": 70.0, "U": 71.0}})
    found = cells(published, ["T", "U"], [record("gp", [0.5, 0.72])])
    assert [(c.target, c.paper, c.last.mean) for c in found] == [("T", 70.0, pytest.approx(72.0)), ("U", 71.0, None)]


def test_rounds_that_were_not_judged_shift_nothing() -> None:
    published = Published(source="a paper", values={"falls": 60.0})
    sparse = [None, None, None, None, 0.8, None, None, None, None, 0.7, None, None, None, None, 0.5]
    (cell,) = cells(published, ["T"], [record("falls", sparse)])
    assert cell.curve == {5: 80.0, 10: 70.0, 15: 50.0} and cell.last.mean == pytest.approx(50.0)


def test_the_page_has_a_row_per_method_with_each_value_and_how_many_cells_were_reached() -> None:
    published = Published(source="a paper", values={"gp-noise-0": 60.0, "gp-noise-0.4": 50.0, "oracle": 90.0})
    records = [record("gp-noise-0", [0.4, 0.62]), record("gp-noise-0.4", [0.4, 0.45])]
    found = cells(published, ["T"], records)
    assert within(found) == (1, 2)
    places = {f"gp-noise-{v}": Swept("gp", {"noise": v}) for v in (0, 0.4)}
    config = SimpleNamespace(published=published, split=SimpleNamespace(targets=["T"]), sweeps=lambda: places)
    study = SimpleNamespace(
        config=config, records=[SimpleNamespace(**vars(r), scores={}) for r in records], smallest=11
    )
    assert [(name, [label for label, _ in part]) for name, part in section.rows(found, study)] == [
        ("gp", ["noise 0", "noise 0.4"]),
        ("oracle", ["T"]),
    ]
    drawn = section.plots(study)
    assert set(drawn) == {"reproduction_gp", "reproduction_oracle"}
    first, second = str(drawn["reproduction_gp"]).split("<g ")[1:]
    assert "62.0 / 60.0" in first and "45.0 / 50.0" in second
    assert "T: ours –, paper 90.0" in drawn["reproduction_oracle"]
