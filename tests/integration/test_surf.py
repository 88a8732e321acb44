"""Office-Caltech10 with its real SURF features, where a machine has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fdamed.classical.pairs import PAIRS, PUBLISHED, SYMMETRIC, methods, read, table
from fdamed.errors import FdamedError

Domains = dict[str, tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module")
def domains(real_data: Path) -> Domains:
    folder = real_data / "office_caltech_surf"
    if not folder.is_dir():
        pytest.skip("no SURF features of Office-Caltech10 beside the repository")
    return read(folder)


def test_the_four_domains_have_their_known_sizes(domains: Domains) -> None:
    assert {k: X.shape for k, (X, _) in domains.items()} == {
        "C": (1123, 800),
        "A": (958, 800),
        "W": (295, 800),
        "D": (157, 800),
    }
    assert all(sorted(set(y)) == list(range(1, 11)) for _, y in domains.values())


def test_the_nearest_neighbour_baselines_are_the_published_ones(domains: Domains) -> None:
    got = table(domains, ["1-NN"]).set_index("pair")["default"]
    assert got.to_dict() == PUBLISHED["1-NN"]
    assert got["C->A"] == 23.70
    assert got["D->W"] == 63.39


def test_a_pair_of_small_domains_by_methods_that_align_beats_no_alignment(domains: Domains) -> None:
    got = table(domains, ["TCA", "CORAL", "GFK"], ["W->D", "D->W"]).set_index(["method", "pair"])
    for method in ("TCA", "CORAL", "GFK"):
        for pair in ("W->D", "D->W"):
            assert got.loc[(method, pair), "chosen"] > PUBLISHED["1-NN"][pair]
            assert got.loc[(method, pair), "oracle"] >= got.loc[(method, pair), "chosen"]


@pytest.mark.parametrize("method", ["TCA", "RF-TCA (gaussian)", "GFK"])
def test_one_fit_of_a_symmetric_method_serves_both_directions(domains: Domains, method: str) -> None:
    assert method in SYMMETRIC
    forth = table(domains, [method], ["W->D", "D->W"]).iloc[1]
    alone = table(domains, [method], ["D->W"]).iloc[0]
    assert abs(forth["default"] - alone["default"]) <= 1.0  # the median distance is over other samples


def test_a_folder_without_the_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(FdamedError, match=r"caltech\.mat is not there"):
        read(tmp_path)


def test_every_method_has_a_grid_and_every_pair_a_name() -> None:
    assert len(PAIRS) == 12
    assert set(PUBLISHED) <= set(methods()) and set(methods()) >= SYMMETRIC
