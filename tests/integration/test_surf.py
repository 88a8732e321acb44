"""Office-Caltech10 with its real SURF features, where a machine has them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.feature_files import FeatureSet, read
from benchmarks.office_caltech import SYMMETRIC, main, methods, published, rows

PUBLISHED = published("office_caltech10_surf")["accuracy"]


@pytest.fixture(scope="module")
def features(real_data: Path) -> FeatureSet:
    folder = real_data / "office_caltech_surf"
    if not folder.is_dir():
        pytest.skip("no SURF features of Office-Caltech10 beside the repository")
    return read(folder)


def table(features: FeatureSet, names: list[str], pairs: list[str] | None = None) -> pd.DataFrame:
    return pd.DataFrame(rows(features, names, pairs)).set_index(["method", "pair"])


def test_the_four_domains_have_their_known_sizes(features: FeatureSet) -> None:
    assert features.name == "office_caltech10_surf" and len(features.pairs) == 12
    assert {k: X.shape for k, (X, _) in features.domains.items()} == {
        "C": (1123, 800),
        "A": (958, 800),
        "W": (295, 800),
        "D": (157, 800),
    }
    assert all(sorted(set(y)) == list(range(1, 11)) for _, y in features.domains.values())


def test_the_nearest_neighbor_baselines_are_the_published_ones(features: FeatureSet) -> None:
    got = table(features, ["not aligned"])["default"].xs("not aligned")
    assert got.to_dict() == PUBLISHED["not aligned"]
    assert got["C->A"] == 23.70
    assert got["D->W"] == 63.39


def test_jda_at_its_defaults_gives_the_published_figures(features: FeatureSet) -> None:
    got = table(features, ["JDA"], ["W->D", "D->W", "A->D"])["default"].xs("JDA")
    assert got.to_dict() == {"W->D": 89.17, "D->W": 89.49, "A->D": 39.49}
    assert all(got[pair] == PUBLISHED["JDA"][pair] for pair in got.index)


def test_a_pair_of_small_domains_by_methods_that_align_beats_no_alignment(features: FeatureSet) -> None:
    got = table(features, ["TCA", "CORAL", "GFK"], ["W->D", "D->W"])
    for method in ("TCA", "CORAL", "GFK"):
        for pair in ("W->D", "D->W"):
            assert got.loc[(method, pair), "chosen"] > PUBLISHED["not aligned"][pair]
            assert got.loc[(method, pair), "oracle"] >= got.loc[(method, pair), "chosen"]


@pytest.mark.parametrize("method", ["TCA", "RF-TCA (gaussian)", "GFK"])
def test_one_fit_of_a_symmetric_method_serves_both_directions(features: FeatureSet, method: str) -> None:
    assert method in SYMMETRIC and set(methods()) >= SYMMETRIC
    forth = table(features, [method], ["W->D", "D->W"]).iloc[1]
    alone = table(features, [method], ["D->W"]).iloc[0]
    assert abs(forth["default"] - alone["default"]) <= 1.5  # the median distance is over other samples


def test_the_benchmark_writes_the_table_with_the_published_figures_beside_ours(
    features: FeatureSet, real_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "table.csv"
    main([str(real_data / "office_caltech_surf"), "--methods", "GFK", "--pairs", "C->A", "--out", str(out)])
    table = pd.read_csv(out)
    assert table["published"].tolist() == [41.02] and table["default"].tolist() == [41.02]
