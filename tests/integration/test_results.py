"""A finished study as data frames, and the notebook that opens one."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

import fdamed.results
from fdamed.cli.main import main
from fdamed.core.errors import FdamedError
from tests.support.run_folders import WIRE, write_predictions, write_study

NOTEBOOK = Path(__file__).parents[2] / "docs/how_to/open_a_study.ipynb"
RUNS = ("fedavg", "gp", "oracle")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that has results/demo of three runs and two seeds, with audit and report."""
    home = tmp_path_factory.mktemp("home")
    config = write_study(home, runs={name: {} for name in RUNS}, seeds=[0, 1], train={"rounds": 4})
    for run in RUNS:
        for seed in (0, 1):
            write_predictions(home / "results/demo", run, "NC", seed)
    assert main(["audit", "--config", str(config), "--target", "NC"]) == 0
    assert main(["report", "--config", str(config)]) == 0
    return home


def test_a_study_opens_as_data_frames(folder: Path) -> None:
    study = fdamed.results.load(folder / "results/demo")
    assert set(study.scores["run"]) == set(RUNS) and set(study.scores["seed"]) == {0, 1}
    assert {(a, b) for a, b in study.pairs.query("metric == 'auc'")[["first", "second"]].itertuples(index=False)} == {
        *(("fedavg", "gp"), ("fedavg", "oracle"), ("gp", "oracle")),
    }
    assert len(study.rounds.query("run == 'gp' and metric == 'test/auc'")) == 4
    sent = study.ledger.query("run == 'gp' and seed == 0 and to == 'server' and kind == 'update'")
    assert sent["bytes"].sum() == 4 * 4 * WIRE["gp"]["update"]  # four sources, four rounds
    settings = study.runs.set_index(["run", "target", "seed"])
    assert len(settings) == 6 and settings.loc[("gp", "NC", 1), "options.beta"] == 0.5


def test_what_the_report_suppresses_is_not_in_the_frames(tmp_path: Path) -> None:
    config = write_study(tmp_path, runs={"fedavg": {}}, seeds=[0], privacy={"smallest_cell": 91})  # 90 positives
    assert main(["report", "--config", str(config)]) == 0
    study = fdamed.results.load(tmp_path / "results/demo")
    assert study.scores["value"].isna().all() and study.scores["why"].str.startswith("suppressed").all()
    assert study.rounds.empty


def test_an_unfinished_study_and_an_unknown_table_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FdamedError, match="no report"):
        fdamed.results.load(tmp_path)
    with pytest.raises(FdamedError, match="did you mean `pairs`"):
        fdamed.results.load(folder / "results/demo").table("pair")
    with pytest.raises(FdamedError, match="no table"):
        fdamed.results.load(folder / "results/demo").table("../../clients/rejects")


def test_the_notebook_runs_and_has_no_outputs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) > 4 and not any(cell.outputs for cell in cells)
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    for cell in cells:
        exec(cell.source, names)
    assert list(names["curves"].index) == [1, 2, 3, 4]
