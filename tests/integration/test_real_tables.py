"""Real tables where a machine has them: CheXpert's train.csv and 4,999 radiographs of the NIH."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from fdamed.config.split import Split
from fdamed.data.datasets.chexpert import Chexpert
from fdamed.data.datasets.nih import Nih
from fdamed.data.ingestion import read_index, read_rows
from fdamed.data.row_reader import Rejects
from fdamed.data.splitting.cohort import build
from fdamed.data.splitting.leakage import Leakage, check_manifests

CLIENTS = {
    "Lung_Lesion": "Lung Lesion",
    "Pneumonia": "Pneumonia",
    "Atelectasis": "Atelectasis",
    "Consolidation": "Consolidation",
    "Edema": "Edema",
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    table = os.environ.get("FDAMED_CHEXPERT_TABLE", "")
    if not Path(table).is_file():
        pytest.skip("FDAMED_CHEXPERT_TABLE does not name CheXpert's train.csv(.gz)")
    release = tmp_path_factory.mktemp("chexpert") / "CheXpert-v1.0-small"
    release.mkdir()
    shutil.copy(table, release / ("train.csv.gz" if table.endswith(".gz") else "train.csv"))
    rejects = Rejects()
    frame = read_rows(Chexpert(layout="chexpert", root=str(release)), "s", rejects)
    assert rejects.lines == []
    return frame


def test_the_real_table_has_its_known_counts(index: pd.DataFrame) -> None:
    assert len(index) == 223_414
    assert index["patient"].nunique() == 64_540
    assert index["study"].nunique() == 187_641
    assert index["sex"].value_counts(dropna=False).tolist() == [132_636, 90_777, 1]
    assert (index["age"] == 90).sum() == 7_579
    assert (index["age"] == 0).sum() == 3
    assert index["label.Edema"].value_counts().to_dict() == {1.0: 52_246, 0.0: 20_726, -1.0: 12_984}
    assert index["view"].value_counts().to_dict() == {"frontal": 191_027, "lateral": 32_387}


def test_the_reference_rule_gives_the_published_domains_and_their_leaks(index: pd.DataFrame) -> None:
    cut = Split(by="condition", clients=CLIENTS, target="Edema", rule="reference", labeled=1000)
    cohort = build(index, cut)
    sizes = {
        p: (len(f), int((f["split"] != "test").sum()), f["patient"].nunique()) for p, f in cohort.manifests.items()
    }
    assert sizes == {
        "Lung_Lesion": (18_372, 14_697, 7_096),
        "Pneumonia": (12_078, 9_662, 5_420),
        "Atelectasis": (66_752, 53_401, 25_469),
        "Consolidation": (29_566, 23_652, 11_729),
        "Edema": (104_492, 83_593, 32_121),
    }
    assert cohort.shared == {"1": 20_358, "2": 13_730, "3": 6_219, "4": 2_195, "5": 1_316}
    assert check_manifests(cohort.manifests, "reference").patients_in_two_clients == 23_460
    shared = {
        (a, b): int(cohort.manifests[a]["image"].isin(cohort.manifests[b]["image"]).sum())
        for a, b in itertools.combinations(CLIENTS, 2)
    }
    assert shared["Lung_Lesion", "Pneumonia"] == 6_641
    assert shared["Atelectasis", "Edema"] == 43_762


def test_the_default_rule_leaks_nothing_on_the_real_table(index: pd.DataFrame) -> None:
    cut = Split(by="condition", clients=CLIENTS, target="Edema", per_class=500, labeled=200)
    cohort = build(index, cut)
    assert check_manifests(cohort.manifests) == Leakage(0, 0, 0)
    for frame in cohort.manifests.values():
        trained = frame[frame["split"].isin(("train", "adapt"))]
        one = int(frame["patient"].value_counts().max())
        assert trained["y"].value_counts().to_dict() == pytest.approx({0: 500, 1: 500}, abs=one)


def test_the_real_radiographs_of_the_nih_are_read_and_cut(real_data: Path) -> None:
    rejects = Rejects()
    index = read_rows(Nih(layout="nih", root=str(real_data / "nih")), "s", rejects)
    assert rejects.lines == []
    counts = {
        c: (int((index[f"label.{c}"] == 1).sum()), index.loc[index[f"label.{c}"] == 1, "patient"].nunique())
        for c in ("Atelectasis", "Consolidation", "Edema", "Pneumonia")
    }
    assert counts == {"Atelectasis": (460, 216), "Consolidation": (205, 88), "Edema": (90, 29), "Pneumonia": (65, 48)}
    either = index[["label.Nodule", "label.Mass"]].max(axis=1) == 1
    assert (int(either.sum()), index.loc[either, "patient"].nunique()) == (363, 187)
    assert index["projection"].value_counts().to_dict() == {"PA": 3_290, "AP": 1_709}
    by_condition = Split(
        by="condition",
        clients={"Lesion": "Nodule|Mass", "Effusion": "Effusion", "Atelectasis": "Atelectasis"},
        target="Atelectasis",
        negatives="no_finding",
    )
    by_view = Split(by="projection", clients={"PA": "PA", "AP": "AP"}, target="AP", label="No Finding", positive_is=0)
    for cut in (by_condition, by_view):
        manifests = build(index, cut).manifests
        assert check_manifests(manifests) == Leakage(0, 0, 0)
        for frame in manifests.values():
            one = int(frame["patient"].value_counts().max())
            for part, share in (("test", 0.2), ("val", 0.1)):
                rows = frame[frame["split"] == part]
                assert len(rows) == pytest.approx(share * len(frame), abs=one)
                assert int(rows["y"].sum()) == pytest.approx(share * len(frame) / 2, abs=one)


def test_every_real_file_passes_the_check(real_data: Path) -> None:
    rejects = Rejects()
    index = read_index(Nih(layout="nih", root=str(real_data / "nih")), "s", rejects)
    assert len(index) == 4_999
    assert rejects.lines == []
