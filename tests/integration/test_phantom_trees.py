"""The phantom trees in the layouts of the real data sets, and the folder they live in."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pydicom
import pytest
from PIL import Image
from pydicom.pixels import apply_voi_lut

from fdamed.cli.main import main
from fdamed.config.datasets import Phantom
from fdamed.core.errors import FdamedError
from fdamed.data.phantom import LAYOUTS, write
from fdamed.data.phantom import folder as tree
from fdamed.data.phantom.layouts import chexpert as chexpert_layout
from fdamed.data.phantom.population import Cohort, draw_cohort

SETTINGS = Phantom(patients=60, size=48)
HEADER = (
    "Path,Sex,Age,Frontal/Lateral,AP/PA,No Finding,Enlarged Cardiomediastinum,Cardiomegaly,Lung Opacity,Lung Lesion,"
    "Edema,Consolidation,Pneumonia,Atelectasis,Pneumothorax,Pleural Effusion,Pleural Other,Fracture,Support Devices"
)
CONDITIONS = ("Lung Lesion", "Pneumonia", "Atelectasis", "Consolidation", "Edema")


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("phantoms")
    return {layout: write(SETTINGS, layout, base / layout) for layout in ("chexpert", "mimic", "midrc")}


def read(path: Path, sep: str = ",") -> pd.DataFrame:
    return pd.read_csv(path, dtype=str, keep_default_na=False, sep=sep)


def contents(root: Path) -> dict[str, str]:
    files = sorted(p for p in root.rglob("*") if p.is_file())
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


# --- CheXpert ---------------------------------------------------------------------------------------------------------


def test_chexpert_has_the_real_columns_paths_and_values(trees: dict[str, Path]) -> None:
    release = trees["chexpert"] / "CheXpert-v1.0-small"
    assert (release / "train.csv").read_text().splitlines()[0] == HEADER
    assert (release / "valid.csv").read_text().splitlines()[0] == HEADER
    train = read(release / "train.csv")
    shape = r"CheXpert-v1\.0-small/train/patient\d{5}/study\d+/view\d+_(frontal|lateral)\.jpg"
    assert train["Path"].str.fullmatch(shape).all()
    assert train["Path"].is_unique
    assert set(train["Sex"]) == {"Male", "Female", "Unknown"}
    assert train["Age"].astype(int).between(18, 90).all()
    assert set(train["AP/PA"]) <= {"AP", "PA", "LL", "RL", ""}
    assert ((train["AP/PA"] == "") == (train["Frontal/Lateral"] == "Lateral")).all()
    assert set(train["No Finding"]) == {"1.0", ""}
    for condition in CONDITIONS:
        assert {"1.0", "0.0", ""} <= set(train[condition]) <= {"1.0", "0.0", "-1.0", ""}
        assert (train[condition] == "").mean() > 0.4
    assert train[list(CONDITIONS)].isin(["-1.0"]).any(axis=None)
    assert not read(release / "valid.csv").iloc[:, 5:].isin(["-1.0", ""]).any(axis=None)


def test_every_chexpert_row_has_its_image_and_every_image_its_row(trees: dict[str, Path]) -> None:
    root = trees["chexpert"]
    tables = [read(root / "CheXpert-v1.0-small" / name) for name in ("train.csv", "valid.csv")]
    listed = {path for table in tables for path in table["Path"]}
    assert listed == {str(p.relative_to(root)) for p in root.rglob("*.jpg")}
    for path in sorted(listed)[:20]:
        with Image.open(root / path) as image:
            assert image.mode == "L"
            assert max(image.size) == 48
            assert np.asarray(image).std() > 20


def test_chexpert_patients_have_several_studies_and_some_fit_several_conditions(trees: dict[str, Path]) -> None:
    train = read(trees["chexpert"] / "CheXpert-v1.0-small" / "train.csv")
    train["patient"] = train["Path"].str.split("/").str[2]
    train["study"] = train["Path"].str.split("/").str[3]
    assert train.groupby("patient")["study"].nunique().max() >= 3
    known = train[list(CONDITIONS)].isin(["1.0", "0.0"]).groupby(train["patient"]).any().sum(axis=1)
    assert (known == 1).mean() > 0.5
    assert (known >= 2).sum() >= 3
    labels = train.groupby(["patient", "study"])[list(CONDITIONS)].nunique()
    assert (labels == 1).all(axis=None)


def test_labels_say_what_the_image_shows() -> None:
    cohort = draw_cohort(SETTINGS, chexpert_layout.LAYOUT)
    paths, valid = chexpert_layout.paths_of(cohort)
    table = chexpert_layout.table_of(cohort, paths, valid)
    for condition in CONDITIONS:
        shown = cohort.shows[:, chexpert_layout.f.KINDS.index(condition)]
        assert shown[table[condition] == "1.0"].all()
        assert not shown[table[condition] == "0.0"].any()


# --- MIMIC-CXR --------------------------------------------------------------------------------------------------------


def test_mimic_has_the_real_tables_and_tree(trees: dict[str, Path]) -> None:
    root = trees["mimic"]
    metadata = read(root / "mimic-cxr-2.0.0-metadata.csv.gz")
    assert metadata.columns.tolist() == [
        "dicom_id",
        "subject_id",
        "study_id",
        "PerformedProcedureStepDescription",
        "ViewPosition",
        "Rows",
        "Columns",
        "StudyDate",
        "StudyTime",
        "ProcedureCodeSequence_CodeMeaning",
        "ViewCodeSequence_CodeMeaning",
        "PatientOrientationCodeSequence_CodeMeaning",
    ]
    shape = re.compile(r"files/p1\d/p1\d{7}/s5\d{7}/[0-9a-f]{8}(-[0-9a-f]{8}){4}\.dcm")
    files = {str(p.relative_to(root)) for p in root.rglob("*.dcm")}
    assert all(shape.fullmatch(name) for name in files)
    wanted = {
        f"files/p{p[:2]}/p{p}/s{s}/{d}.dcm"
        for d, p, s in metadata[["dicom_id", "subject_id", "study_id"]].itertuples(index=False)
    }
    assert wanted == files
    for labeller in ("chexpert", "negbio"):
        labels = read(root / f"mimic-cxr-2.0.0-{labeller}.csv.gz")
        assert labels.shape == (metadata["study_id"].nunique(), 16)
        assert labels.columns[2:].tolist() == sorted(labels.columns[2:])
        assert set(labels["No Finding"]) == {"1.0", ""}
    split = read(root / "mimic-cxr-2.0.0-split.csv.gz")
    assert split.groupby("subject_id")["split"].nunique().max() == 1


def test_mimic_iv_gives_the_age_at_the_study_and_races_as_written_there(trees: dict[str, Path]) -> None:
    root = trees["mimic"]
    people = read(root / "hosp" / "patients.csv.gz").set_index("subject_id")
    assert people.columns.tolist() == ["gender", "anchor_age", "anchor_year", "anchor_year_group", "dod"]
    metadata = read(root / "mimic-cxr-2.0.0-metadata.csv.gz")
    files = {p.stem: p for p in root.rglob("*.dcm")}
    for row in metadata.head(25).itertuples(index=False):
        person = people.loc[row.subject_id]
        age = int(person["anchor_age"]) + int(row.StudyDate[:4]) - int(person["anchor_year"])
        header = pydicom.dcmread(files[row.dicom_id], stop_before_pixels=True)
        assert min(age, 90) == int(header.PatientAge[:3])
        assert header.PatientSex == person["gender"]
        assert (header.Rows, header.Columns) == (int(row.Rows), int(row.Columns))
    admissions = read(root / "hosp" / "admissions.csv.gz")
    assert admissions.shape[1] == 16
    assert {"WHITE", "BLACK/AFRICAN AMERICAN"} <= set(admissions["race"])


def test_some_mimic_patients_name_two_races(tmp_path: Path) -> None:
    from fdamed.data.phantom.layouts.mimic_iv import RACES, admissions

    people = np.arange(10_000_000, 10_001_000)
    race = np.array(list(RACES), dtype=object)[np.arange(1000) % 4]
    table = admissions(0, people, race, np.full(1000, 2150))
    meaning = {word: name for name, words in RACES.items() for word in words}
    named = table.assign(race=table["race"].map(meaning)).dropna(subset="race").groupby("subject_id")["race"].nunique()
    assert 5 <= (named > 1).sum() <= 60
    assert table["hadm_id"].is_unique


@pytest.mark.parametrize("layout", ["mimic", "midrc"])
def test_dicom_files_decode_to_a_chest_whatever_their_tags(trees: dict[str, Path], layout: str) -> None:
    seen: set[tuple[str, str, int]] = set()
    windows: set[str] = set()
    for path in sorted(trees[layout].rglob("*.dcm")):
        image = pydicom.dcmread(path)
        seen.add((image.file_meta.TransferSyntaxUID.name, image.PhotometricInterpretation, image.BitsStored))
        windows.add("lut" if "VOILUTSequence" in image else "window" if "WindowCenter" in image else "none")
        assert image.Modality in ("CR", "DX")
        assert image.pixel_array.max() < 1 << image.BitsStored
        shown = apply_voi_lut(image.pixel_array, image, prefer_lut=True).astype(float)
        if image.PhotometricInterpretation == "MONOCHROME1":
            shown = shown.max() - shown
        rows, columns = shown.shape
        middle = shown[int(rows * 0.75) :, int(columns * 0.4) : int(columns * 0.6)].mean()
        assert middle > shown.mean()
    assert windows == {"lut", "window", "none"}
    assert {photometric for _, photometric, _ in seen} == {"MONOCHROME1", "MONOCHROME2"}
    assert len({syntax for syntax, _, _ in seen}) >= 3
    assert 12 in {bits for _, _, bits in seen}


# --- MIDRC ------------------------------------------------------------------------------------------------------------


def test_midrc_nodes_link_case_study_series_and_file(trees: dict[str, Path]) -> None:
    root = trees["midrc"]
    case = read(root / "case.tsv", "\t").set_index("submitter_id")
    study = read(root / "imaging_study.tsv", "\t").set_index("submitter_id")
    series = pd.concat([read(root / f"{kind}_series_file.tsv", "\t") for kind in ("cr", "dx")])
    assert set(study["cases.submitter_id"]) == set(case.index)
    assert set(series["imaging_studies.submitter_id"]) == set(study.index)
    assert case["zip"].str.fullmatch(r"\d{3}").all()
    assert case["case_ids"].str.fullmatch(r"\['[0-9-]+'\]").all()
    assert set(case["covid19_positive"]) == {"Yes", "No"}
    for row in series.itertuples(index=False):
        (path,) = (root / row.series_uid / row.series_uid).glob("*.dcm")
        content = path.read_bytes()
        assert hashlib.md5(content).hexdigest() == row.md5sum
        assert row.file_name.endswith(f"/{row.series_uid}.zip")
        header = pydicom.dcmread(path, stop_before_pixels=True)
        assert header.SeriesInstanceUID == row.series_uid
        assert header.Modality == row.modality == row.data_category
    positive = study["cases.submitter_id"].map(case["covid19_positive"]) == "Yes"
    assert ((study["days_from_study_to_pos_covid_test"] != "") == positive).all()


# --- the adapters -----------------------------------------------------------------------------------------------------


def test_the_adapters_of_the_real_data_sets_read_every_image_and_refuse_none(trees: dict[str, Path]) -> None:
    from pydantic import TypeAdapter

    from fdamed.data.datasets.chexpert import Chexpert
    from fdamed.data.datasets.midrc import Midrc
    from fdamed.data.datasets.mimic import Mimic
    from fdamed.data.ingestion import read_index
    from fdamed.data.row_reader import Rejects

    for layout, root in trees.items():
        data = TypeAdapter(Chexpert | Mimic | Midrc).validate_python({"layout": layout, "root": str(root)})
        rejects = Rejects()
        index = read_index(data, "salt", rejects)
        images = [p for p in root.rglob("*") if p.suffix in (".jpg", ".dcm")]
        assert len(index) == len(images)
        assert rejects.faults() == 0
        assert index["patient"].nunique() == SETTINGS.patients
    assert set(index["site"].dropna()) == {"IL", "NC", "CA", "IN", "TX"}


# --- the folder -------------------------------------------------------------------------------------------------------


def test_every_tree_says_that_it_is_synthetic(trees: dict[str, Path]) -> None:
    for root in trees.values():
        assert "SYNTHETIC" in (root / "README.txt").read_text()
        assert not list(root.parent.glob(".*.draft"))


def test_the_same_settings_give_the_same_bytes_and_another_seed_gives_others(
    trees: dict[str, Path], tmp_path: Path
) -> None:
    for layout, root in trees.items():
        again = write(SETTINGS, layout, tmp_path / layout)
        assert contents(again) == contents(root)
    other = write(SETTINGS.model_copy(update={"seed": 1}), "chexpert", tmp_path / "other")
    images = {d for name, d in contents(other).items() if name.endswith(".jpg")}
    assert not images & set(contents(trees["chexpert"]).values())


def test_the_number_of_processes_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fdamed.data.phantom import render

    monkeypatch.setattr(render, "CHUNK", 20)
    shared = write(SETTINGS, "chexpert", tmp_path / "two")
    monkeypatch.setattr(render, "CHUNK", 10_000)
    alone = write(SETTINGS, "chexpert", tmp_path / "one")
    assert contents(shared) == contents(alone)


def test_a_complete_phantom_is_kept_and_a_damaged_or_other_one_is_made_anew(tmp_path: Path) -> None:
    small = Phantom(patients=10, size=32)
    root = write(small, "chexpert", tmp_path / "tree")
    image = next(root.rglob("*.jpg"))
    born = image.stat().st_mtime_ns
    assert write(small, "chexpert", root) == root
    assert image.stat().st_mtime_ns == born
    image.unlink()
    write(small, "chexpert", root)
    assert image.is_file()
    born = image.stat().st_mtime_ns
    write(small.model_copy(update={"subtlety": 0.1}), "chexpert", root)
    assert image.stat().st_mtime_ns != born


def test_a_phantom_whose_note_the_workflow_deleted_is_made_anew(tmp_path: Path) -> None:
    root = write(Phantom(patients=10, size=32), "chexpert", tmp_path / "tree")
    (root / tree.NOTE).unlink()
    write(Phantom(patients=12, size=32), "chexpert", root)
    assert (root / tree.NOTE).is_file()


def test_a_folder_of_somebody_else_is_never_touched(tmp_path: Path) -> None:
    precious = tmp_path / "data" / "precious.csv"
    precious.parent.mkdir()
    precious.write_text("real")
    with pytest.raises(FdamedError, match="not touched"):
        write(Phantom(patients=10, size=32), "chexpert", precious.parent)
    assert contents(tmp_path) == {"data/precious.csv": hashlib.sha256(b"real").hexdigest()}


def test_an_interrupted_phantom_leaves_nothing_under_its_name_and_the_next_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Phantom(patients=10, size=32)

    def halfway(cohort: Cohort, draft: Path) -> None:
        (draft / "CheXpert-v1.0-small").mkdir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tree.write_folder(small, replace(LAYOUTS["chexpert"], write=halfway), tmp_path / "tree")
    assert not (tmp_path / "tree").exists()
    assert (write(small, "chexpert", tmp_path / "tree") / tree.NOTE).is_file()
    assert [p.name for p in tmp_path.iterdir()] == ["tree"]


# --- the command ------------------------------------------------------------------------------------------------------

CONFIG = """
study: tiny
data: {{layout: {layout}, root: {root}}}
{phantom}
split: {{by: condition, clients: {{A: Edema, B: Pneumonia}}, target: A}}
runs: {{fedavg: {{}}}}
"""


def configured(folder: Path, layout: str = "chexpert", phantom: str = "phantom: {patients: 12, size: 32}") -> str:
    path = folder / "config.yaml"
    path.write_text(CONFIG.format(layout=layout, root=folder / "raw", phantom=phantom))
    return str(path)


def test_the_command_writes_the_tree_where_the_configuration_or_out_says(tmp_path: Path) -> None:
    config = configured(tmp_path)
    assert main(["phantom", "--config", config]) == 0
    assert (tmp_path / "raw" / "CheXpert-v1.0-small" / "train.csv").is_file()
    assert main(["phantom", "--config", config, "--out", str(tmp_path / "elsewhere")]) == 0
    assert contents(tmp_path / "raw") == contents(tmp_path / "elsewhere")


@pytest.mark.parametrize(("layout", "phantom"), [("chexpert", ""), ("nih", "phantom: {patients: 12}")])
def test_the_command_refuses_real_configurations_and_layouts_without_phantoms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str, phantom: str
) -> None:
    assert main(["phantom", "--config", configured(tmp_path, layout, phantom)]) == 2
    assert "phantom" in capsys.readouterr().err
    assert not (tmp_path / "raw").exists()


@pytest.mark.parametrize("layout", ["mimic", "midrc"])
def test_the_smallest_phantoms_are_readable_dicom_files(tmp_path: Path, layout: str) -> None:
    """JPEG 2000 cannot compress an image with a side below 32 pixels."""
    files = sorted(write(Phantom(patients=60, size=32), layout, tmp_path / layout).rglob("*.dcm"))
    shapes = [pydicom.dcmread(path).pixel_array.shape for path in files]
    assert min(min(shape) for shape in shapes) <= 32 and len(files) > 50
