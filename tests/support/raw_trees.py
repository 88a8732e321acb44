"""Small raw trees in the data sets' real layouts, six images each, for the adapters."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from fdamed.data.datasets.chexpert import CONDITIONS
from fdamed.data.datasets.mimic import LABELS
from tests.support import dicom_files

GOLDEN = Path(__file__).parents[1] / "golden"


def write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]], separator: str = ",") -> Path:
    """Cells without quotes; a `.gz` name gives a gzipped table."""
    text = "\n".join(separator.join(cells) for cells in [header, *rows]) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def write_image(path: Path, shade: int = 90) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.tile(np.arange(64, dtype=np.uint8), (64, 1)) + np.uint8(shade)
    Image.fromarray(pixels).save(path)


def write_dicom(path: Path, **tags: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    dicom_files.write(path, dicom_files.dataset(dicom_files.thorax(), **tags))


def as_text(frame: pd.DataFrame) -> str:
    """An index as golden files hold it: columns that are empty throughout are left out."""
    kept = frame.loc[:, frame.notna().any()]
    return str(kept.to_csv(index=False, lineterminator="\n"))


# --- CheXpert ---

CHEXPERT_HEADER = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *CONDITIONS]


def chexpert_row(
    path: str, sex: str = "Female", age: str = "68", view: str = "Frontal", side: str = "AP", **labels: str
) -> list[str]:
    named = {name.replace("_", " "): value for name, value in labels.items()}
    return [path, sex, age, view, side, *(named.get(c, "") for c in CONDITIONS)]


def chexpert_rows(release: str = "CheXpert-v1.0-small") -> list[list[str]]:
    base = f"{release}/train/patient"
    return [
        chexpert_row(f"{base}00001/study1/view1_frontal.jpg", No_Finding="1.0", Pneumothorax="0.0"),
        chexpert_row(f"{base}00002/study2/view1_frontal.jpg", age="90", Edema="-1.0", Lung_Opacity="1.0"),
        chexpert_row(f"{base}00002/study1/view2_lateral.jpg", "Male", "0", "Lateral", "", Edema="1.0"),
        chexpert_row(f"{base}33093/study1/view1_frontal.jpg", "Unknown", "41", "Frontal", "LL", Edema="0.0"),
        chexpert_row(f"{base}00123/study1/view1_frontal.jpg", "Male", "41", "Frontal", "PA", Lung_Lesion="1.0"),
        chexpert_row(f"{base}0123/study1/view1_frontal.jpg", "Male", "41", "Frontal", "PA", Lung_Lesion="0.0"),
    ]


def chexpert_tree(parent: Path, release: str = "CheXpert-v1.0-small", images: bool = True) -> Path:
    rows = chexpert_rows()
    write_table(parent / release / "train.csv", CHEXPERT_HEADER, rows)
    for row in rows if images else ():
        write_image(parent / release / row[0].partition("/")[2])
    return parent


# --- MIMIC ---

MIMIC_IMAGES = [  # dicom, subject, study, view, date
    ("02aa804e-bde0afdd-112c0b34-7bc16630-4e384014", "10000032", "50414267", "PA", "21800506"),
    ("174413ec-4ec4c1f7-34ea26b7-c5f994f8-79ef1962", "10000032", "50414267", "LATERAL", "21800506"),
    ("68b5c4b1-227d0485-9cc38c3f-7b84ab51-4b472714", "10000764", "57375967", "AP", "21331106"),
    ("096052b7-d256dc40-453a102b-fa7d01c6-1b22c6b4", "11000764", "57375968", "", "21331106"),
    ("8b28aa8f-ff8e4d5a-9d6f6d2d-6a2e4f3b-abcdef01", "12000764", "57375969", "LL", ""),
    ("9b28aa8f-ff8e4d5a-9d6f6d2d-6a2e4f3b-abcdef02", "13000764", "57375970", "PA", "21331106"),
]


def mimic_tree(root: Path, suffix: str = "jpg", release: str = "2.0.0", zipped: str = ".gz", old: bool = False) -> Path:
    """`old`: MIMIC-IV before 2.0, with core/ and ethnicity."""
    prefix = f"mimic-cxr-{release}"
    metadata = ["dicom_id", "subject_id", "study_id", "ViewPosition", "Rows", "StudyDate", "StudyTime"]
    rows = [[d, p, s, v, "3056", day, "213014.531"] for d, p, s, v, day in MIMIC_IMAGES]
    write_table(root / f"{prefix}-metadata.csv{zipped}", metadata, rows)
    values = {
        "50414267": {"No Finding": "1.0"},
        "57375967": {"Edema": "1.0", "Pneumonia": "-1.0"},
        "57375968": {"Edema": "0.0", "Atelectasis": "1.0"},
        "57375969": {"Support Devices": "1.0"},
        "57375970": {"No Finding": "1.0"},
    }
    studies = dict.fromkeys((p, s) for _, p, s, _, _ in MIMIC_IMAGES)
    labels = [[p, s, *(values[s].get(c, "") for c in LABELS)] for p, s in studies]
    for kind in ("chexpert", "negbio"):
        write_table(root / f"{prefix}-{kind}.csv{zipped}", ["subject_id", "study_id", *LABELS], labels)
    split = [[d, s, p, "train" if p < "12" else "test"] for d, p, s, _, _ in MIMIC_IMAGES]
    write_table(root / f"{prefix}-split.csv{zipped}", ["dicom_id", "study_id", "subject_id", "split"], split)
    folder = root / ("core" if old else "hosp")
    people = [
        ["10000032", "F", "52", "2180", "2014 - 2016", ""],
        ["10000764", "M", "86", "2126", "2014 - 2016", ""],
        ["11000764", "M", "91", "2133", "2014 - 2016", ""],
        ["12000764", "F", "30", "2133", "2014 - 2016", ""],
    ]
    write_table(
        folder / f"patients.csv{zipped}",
        ["subject_id", "gender", "anchor_age", "anchor_year", "anchor_year_group", "dod"],
        people,
    )
    admissions = [
        ["10000032", "2", "2180-07-23 12:35:00", "WHITE"],
        ["10000032", "1", "2180-05-06 22:23:00", "UNKNOWN"],
        ["10000764", "3", "2132-10-14 23:31:00", "ASIAN - CHINESE"],
        ["11000764", "5", "2133-02-01 10:00:00", "WHITE"],
        ["11000764", "6", "2133-01-01 10:00:00", "HISPANIC/LATINO - MEXICAN"],
        ["11000764", "7", "2133-03-01 10:00:00", "WHITE - RUSSIAN"],
        ["12000764", "8", "2133-03-01 10:00:00", "OTHER"],
    ]
    header = ["subject_id", "hadm_id", "admittime", "ethnicity" if old else "race"]
    write_table(folder / f"admissions.csv{zipped}", header, admissions)
    for dicom, patient, study, view, _ in MIMIC_IMAGES:
        path = root / f"files/p{patient[:2]}/p{patient}/s{study}/{dicom}.{suffix}"
        if suffix == "jpg":
            write_image(path)
        else:
            write_dicom(path, ViewPosition=view, BurnedInAnnotation="YES" if view == "AP" else "NO")
    return root


# --- MIDRC ---

CASES: list[dict[str, Any]] = [
    {
        "submitter_id": "case-1",
        "age_at_index": 63,
        "covid19_positive": "Yes",
        "race": "White",
        "sex": "Male",
        "zip": "606",
    },
    {
        "submitter_id": "case-2",
        "age_at_index": 41,
        "covid19_positive": "No",
        "race": "Asian",
        "sex": "Female",
        "zip": "275",
    },
    {
        "submitter_id": "case-3",
        "age_at_index_gt89": "Yes",
        "covid19_positive": "Indeterminate",
        "sex": "Female",
        "zip": "000",
        "race": "Black or African American",
    },
    {
        "submitter_id": "case-4",
        "age_at_index": 30,
        "covid19_positive": "Not Reported",
        "race": "Not Reported",
        "zip": "885",
        "race_ethnicity": ["American Indian or Alaska Native", "Not Hispanic or Latino"],
        "sex": "Not Reported",
    },
]
STUDIES: list[dict[str, Any]] = [
    {
        "submitter_id": "study-1",
        "cases.submitter_id": "case-1",
        "days_from_study_to_pos_covid_test": [-40, 3],
        "age_at_imaging": 64,
    },
    {"submitter_id": "study-2", "cases.submitter_id": "case-1", "days_from_study_to_pos_covid_test": [200]},
    {"submitter_id": "study-3", "cases.submitter_id": "case-2"},
    {"submitter_id": "study-4", "cases.submitter_id": "case-3"},
    {"submitter_id": "study-5", "cases.submitter_id": "case-4"},
]
SERIES: list[dict[str, Any]] = [
    {
        "submitter_id": f"series-{i}",
        "imaging_studies.submitter_id": f"study-{i}",
        "series_uid": f"1.2.3.{i}",
        "file_name": f"case/study/1.2.3.{i}.zip",
        "view_position": [["PA"], ["AP"], ["LATERAL"], [], ["AP"]][i - 1],
        "manufacturer": "FUJIFILM",
        "manufacturer_model_name": "FDR",
        "case_ids": ["x"],
    }
    for i in range(1, 6)
]


def midrc_tree(root: Path, shape: str = "tsv", dicoms: bool = True) -> Path:
    """The nodes as `tsv` or `json`; series 1 has two images, the others one."""
    root.mkdir(parents=True, exist_ok=True)
    for name, records in (("case", CASES), ("imaging_study", STUDIES), ("cr_series_file", SERIES)):
        if shape == "json":
            nested = [_nested(r) for r in records]
            (root / f"{name}.json").write_text(json.dumps({"data": nested}), encoding="utf-8")
        else:
            header = list(dict.fromkeys(k for r in records for k in r))
            rows = [[str(r.get(k, "")) for k in header] for r in records]
            starred = [f"*{k}" if k == "submitter_id" else k for k in header]
            write_table(root / f"Open-A1_{name}.tsv", starred, rows, "\t")
    for i in range(1, 6) if dicoms else ():
        for n in range(2 if i == 1 else 1):
            path = root / f"Open-A1/case/1.2.3.{i}/1.2.3.{i}/{n}.dcm"
            write_dicom(path, ViewPosition="AP", PatientSex="F", PatientAge="030Y")
    return root


def _nested(record: dict[str, Any]) -> dict[str, Any]:
    """Links as node JSON writes them."""
    out: dict[str, Any] = {}
    for key, value in record.items():
        link, _, field = key.partition(".")
        if field:
            out[link] = [{field: value}]
        else:
            out[key] = value
    return out


# --- NIH ---

NIH_HEADER = [
    "Image Index",
    "Finding Labels",
    "Follow-up #",
    "Patient ID",
    "Patient Age",
    "Patient Gender",
    "View Position",
    "OriginalImage[Width,Height]",
    "OriginalImagePixelSpacing[x,y]",
]
NIH_ROWS = [
    ["00000001_000.png", "Cardiomegaly", "0", "1", "57", "M", "PA", "2682,2749", "0.143,0.143"],
    ["00000001_001.png", "Cardiomegaly|Emphysema", "1", "1", "58", "M", "PA", "2894,2729", "0.143,0.143"],
    ["00000002_000.png", "No Finding", "0", "2", "94", "M", "AP", "2500,2048", "0.171,0.171"],
    ["00000003_000.png", "Hernia", "0", "3", "0", "F", "PA", "2582,2991", "0.143,0.143"],
    ["00000004_000.png", "Mass|Nodule", "0", "4", "82", "M", "AP", "2500,2048", "0.168,0.168"],
    ["00000005_000.png", "Edema|Pneumonia|Pleural_Thickening", "0", "5", "69", "F", "PA", "2048,2500", "0.168,0.168"],
]


def nih_tree(root: Path, folders: tuple[str, ...] = ("images",)) -> Path:
    write_table(root / "Data_Entry_2017_v2020.csv", NIH_HEADER, NIH_ROWS)
    for i, row in enumerate(NIH_ROWS):
        write_image(root / folders[i % len(folders)] / row[0])
    (root / "train_val_list.txt").write_text("".join(r[0] + "\n" for r in NIH_ROWS[:3]), encoding="utf-8")
    (root / "test_list.txt").write_text("".join(r[0] + "\n" for r in NIH_ROWS[3:5]), encoding="utf-8")
    return root


# --- PadChest ---

PADCHEST_HEADER = [
    "", "ImageID", "ImageDir", "StudyDate_DICOM", "StudyID", "PatientID", "PatientBirth", "PatientSex_DICOM",
    "ViewPosition_DICOM", "Projection", "MethodProjection", "Pediatric", "Manufacturer_DICOM", "Report", "MethodLabel",
    "Labels", "Localizations",
]  # fmt: skip
PHILIPS, IMAGING = "PhilipsMedicalSystems", "ImagingDynamicsCompanyLtd"
PADCHEST_IMAGES = [  # image, folder, date, patient, birth, sex, projection, manufacturer, method, labels
    ("1_a.png", "0", "20140915", "839", "1930.0", "F", "PA", PHILIPS, "Physician", "['normal']"),
    ("1_b.png", "0", "20140915", "839", "1930.0", "F", "L", PHILIPS, "Physician", "['normal']"),
    ("2_a.png", "0", "20150331", "100", "1921", "M", "AP_horizontal", PHILIPS, "RNN_model", "['pleural effusion']"),
    ("3_a.png", "1", "20100102", "101", "", "O", "AP", IMAGING, "RNN_model", "['cardiomegaly', ' pleural effusion']"),
    ("4_a.png", "1", "20120506", "102", "2000.0", "", "COSTAL", "", "RNN_model", "['unchanged', 'cardiomegaly']"),
    ("5_a.png", "54", "20120506", "103", "1955.0", "M", "PA", IMAGING, "RNN_model", "['pneumonia', '']"),
]


def padchest_row(number: int, *cells: str) -> list[str]:
    image, folder, date, patient, birth, sex, projection, maker, method, labels = cells
    study = image.partition("_")[0]
    ids = [str(number), image, folder, date, study, patient, birth, sex, "POSTEROANTERIOR", projection, "Manual", "No"]
    return [*ids, maker, "sin hallazgos .", method, f'"{labels}"', '"[]"']


def padchest_tree(root: Path, rows: Sequence[Sequence[str]] = PADCHEST_IMAGES, flat: bool = False) -> Path:
    name = "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv"
    write_table(root / name, PADCHEST_HEADER, [padchest_row(i, *row) for i, row in enumerate(rows)])
    for image, folder, *_ in rows:
        path = root / ("" if flat else folder) / image
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(dicom_files.thorax(bits=14)).save(path)
    return root


# --- VinDr-CXR ---

VINDR_LABELS = ["Aortic enlargement", "Cardiomegaly", "Pleural effusion", "Nodule/Mass", "Other diseases", "No finding"]
VINDR_TRAIN = {  # image -> labels of three readers
    "4d390e07733ba06e": ("000001", "000001", "000001"),
    "5e7d28f5a43e3b1b": ("010000", "010000", "000001"),
    "9c4ea9f7e7f4f1a0": ("100010", "000010", "000001"),
    "c1f1ae8cd3b1b1e2": ("001000", "001000", "001000"),
}
VINDR_TEST = {"002a34c58c5b758217ed1f584ccbcfe9": "000100", "004f33259ee4aef671c2b95d54e4be68": "000001"}


def vindr_tree(root: Path, train: dict[str, tuple[str, ...]] | None = None) -> Path:
    readers = VINDR_TRAIN if train is None else train
    rows = [[image, f"R{i + 8}", *votes] for image, three in readers.items() for i, votes in enumerate(three)]
    write_table(root / "annotations/image_labels_train.csv", ["image_id", "rad_id", *VINDR_LABELS], rows)
    agreed = [[image, *votes] for image, votes in VINDR_TEST.items()]
    header = ["image_id", *(name.replace("diseases", "disease") for name in VINDR_LABELS)]
    write_table(root / "annotations/image_labels_test.csv", header, agreed)
    for folder, images in (("train", readers), ("test", VINDR_TEST)):
        for i, image in enumerate(images):
            tags = {"Modality": "DX", "ViewPosition": "", "PatientSex": "MFO"[i % 3], "PatientAge": f"{40 + i:03d}Y"}
            write_dicom(root / folder / f"{image}.dicom", **tags, BodyPartExamined="")
    return root
