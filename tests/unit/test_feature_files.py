"""Feature files of Office-31 and Office-Caltech10 in their usual formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from benchmarks.feature_files import read
from benchmarks.office_caltech import main, published
from fdamed.core.errors import FdamedError

AVERAGES = {
    "office_caltech10_decaf6": {"TCA": 74.95, "RF-TCA (N = 1000)": 78.57, "RF-TCA (gaussian)": 77.18, "GFK": 84.54},
    "office31_decaf6": {"TCA": 63.42, "RF-TCA (gaussian)": 58.36, "JDA": 61.34, "CORAL": 59.24, "DaNN": 58.47},
}


def write(folder: Path, names: dict[str, int], p: int, features: str, labels: str, classes: int = 3) -> Path:
    """One file a domain whose classes are apart and whose mean is its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, n) in enumerate(names.items()):
        y = np.arange(n) % classes + 1
        X = np.random.default_rng(seed).random((n, p)) + 3.0 * (np.arange(p) % classes == (y - 1)[:, None]) + seed
        savemat(folder / name, {features: X, labels: y[:, None]})
    return folder


def test_decaf6_of_office_caltech10_has_four_domains_and_twelve_pairs(tmp_path: Path) -> None:
    names = {"amazon_decaf.mat": 12, "caltech_decaf.mat": 15, "dslr_decaf.mat": 9, "webcam_decaf.mat": 12}
    found = read(write(tmp_path, names, 4096, "feas", "labels"))
    assert found.name == "office_caltech10_decaf6" and len(found.pairs) == 12
    assert found.domains["C"][0].shape == (15, 4096) and found.domains["D"][1].tolist() == [1, 2, 3] * 3


def test_decaf6_of_office31_has_three_domains_and_six_pairs(tmp_path: Path) -> None:
    found = read(
        write(tmp_path, {"Amazon_fc6.mat": 12, "DSLR_fc6.mat": 9, "Webcam_fc6.mat": 12}, 4096, "fts", "labels")
    )
    assert found.name == "office31_decaf6"
    assert set(found.pairs) == {"A->D", "A->W", "D->A", "D->W", "W->A", "W->D"}


def test_words_that_are_counts_become_z_scores_of_shares(tmp_path: Path) -> None:
    counts = np.zeros((4, 800))
    counts[:, :2] = [[1, 3], [2, 2], [3, 1], [2, 2]]
    for name in ("amazon", "dslr", "webcam"):
        savemat(tmp_path / f"{name}_SURF_L10.mat", {"fts": counts, "labels": np.ones((4, 1))})
    savemat(tmp_path / "amazon_SURF_L10_imgs.mat", {"imgNames": np.zeros(1)})
    X, _ = read(tmp_path).domains["A"]
    # shares 1/4, 1/2, 3/4, 1/2: mean 1/2, standard deviation sqrt(1/32)
    assert X[:, 0] == pytest.approx(np.array([-0.25, 0.0, 0.25, 0.0]) * np.sqrt(32))
    assert (X[:, 2:] == 0).all()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "dslr.mat").unlink(), r"dslr\*\.mat is not there"),
        (lambda f: savemat(f / "dslr_too.mat", {"feas": np.ones((2, 5))}), "two files for dslr"),
        (lambda f: savemat(f / "dslr.mat", {"x": np.ones((2, 5))}), "none of feas, fts"),
        (
            lambda f: savemat(f / "dslr.mat", {"feas": np.ones((2, 5)), "label": [1, 2, 3]}),
            "2 x 5 features and 3 labels",
        ),
        (lambda f: savemat(f / "dslr.mat", {"feas": np.ones((2, 7)), "label": [1, 2]}), "5, 7 features"),
        (lambda f: savemat(f / "dslr.mat", {"feas": np.full((2, 5), np.nan), "label": [1, 2]}), "no finite numbers"),
        (lambda f: (f / "dslr.mat").write_bytes(b"not MATLAB at all" * 20), "not a readable MATLAB file"),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path: Path, spoil, message: str) -> None:
    write(tmp_path, {"amazon.mat": 4, "dslr.mat": 4, "webcam.mat": 4}, 5, "feas", "label")
    spoil(tmp_path)
    with pytest.raises(FdamedError, match=message):
        read(tmp_path)
    with pytest.raises(FdamedError, match="no such folder"):
        read(tmp_path / "elsewhere")


@pytest.mark.parametrize("name", list(AVERAGES))
def test_the_papers_cells_average_to_what_it_prints(name: str) -> None:
    table = published(name)
    for method, average in AVERAGES[name].items():
        cells = table["accuracy"][method].values()
        assert len(cells) == (12 if "caltech" in name else 6)
        assert sum(cells) / len(cells) == pytest.approx(average, abs=0.011)
        assert table["average"][method] == average


def test_the_papers_slips_are_read_as_they_are_meant() -> None:
    table = published("office_caltech10_decaf6")
    assert table["accuracy"]["GFK"]["A->D"] == 85.35
    column = table["accuracy"]["DaNN"].values()
    assert sum(column) / 12 == pytest.approx(82.94, abs=0.005) and table["average"]["DaNN"] == 83.24
    assert any("82.94" in line for line in table["errata"])


def test_the_benchmark_shows_the_papers_figures_beside_ours(tmp_path: Path, capsys) -> None:
    folder = write(tmp_path, {"amazon.mat": 30, "dslr.mat": 24, "webcam.mat": 24}, 4096, "fts", "label")
    asked = ["--methods", "not aligned", "CORAL", "RF-TCA (gaussian)", "--pairs", "D->W"]
    main([str(folder), *asked, "--classifier", "svm"])
    shown = capsys.readouterr().out
    assert "| CORAL | 89.81 |" in shown and "Paper 002, tables IX, X and XII" in shown
    assert "| RF-TCA (gaussian) | 87.92 |" in shown
    with pytest.raises(SystemExit):
        main([str(folder), "--pairs", "C->W"])
    assert "no pair 'C->W'" in capsys.readouterr().err
