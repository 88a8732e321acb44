"""The cohort as a MIDRC export: Gen3 nodes as TSV and the unpacked DICOM series."""

from __future__ import annotations

import hashlib
import uuid
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from fdamed.config.datasets import Phantom
from fdamed.core.rng import stream
from fdamed.data.datasets.midrc import STATES
from fdamed.data.phantom.population import Cohort, Flags, Numbers, draw_cohort
from fdamed.data.phantom.render import Pixels, save_all
from fdamed.data.phantom.rules import covid
from fdamed.data.phantom.trees import dicom_file

ZIPS = {state: tuple(map(int, ranges[0].split("-"))) for state, ranges in STATES.items()}
"""State -> first and last of its three-digit zip codes."""
PROJECTS = {"IL": "Open-A1", "NC": "Open-R1", "CA": "Open-R1", "IN": "Open-A1", "TX": "Open-R1"}
SCANNERS = {
    "IL": ("GE Healthcare", "Optima XR240amx"),
    "NC": ("Philips Medical Systems", "DigitalDiagnost"),
    "CA": ("FUJIFILM Corporation", "0000"),
    "IN": ("Agfa", "DXD30_Wireless"),
    "TX": ("Carestream Health", "DRX-Revolution"),
}
RACES = (
    ("White", 0.45),
    ("Black or African American", 0.30),
    ("Asian", 0.06),
    ("Other", 0.09),
    ("American Indian or Alaska Native", 0.01),
    ("Not Reported", 0.09),
)
COMPUTED = 0.6
"""Share of the images that are CR; the others are DX."""


def cohort_of(phantom: Phantom) -> Cohort:
    # The test result belongs to the case, so studies of one case agree.
    return draw_cohort(phantom, "midrc", covid, change=0.0)


def fill(phantom: Phantom, root: Path) -> None:
    """Write the node tables and one folder a series below `root`."""
    cohort = cohort_of(phantom)
    for row in range(len(cohort)):
        (root / path_of(cohort, row)).parent.mkdir(parents=True)
    save_all(cohort, partial(_save, root, cohort, _computed(cohort)))
    case_table(cohort).to_csv(root / "case.tsv", sep="\t", index=False)
    study_table(cohort).to_csv(root / "imaging_study.tsv", sep="\t", index=False)
    series = series_table(cohort, root)
    for kind in ("CR", "DX"):
        rows = series[series["modality"] == kind]
        rows.to_csv(root / f"{kind.lower()}_series_file.tsv", sep="\t", index=False)


def path_of(cohort: Cohort, row: int) -> str:
    """A series comes as <uid>.zip and unpacks to <uid>/<uid>/*.dcm."""
    series = dicom_file.uid(cohort.seed, "series", row)
    return f"{series}/{series}/{dicom_file.uid(cohort.seed, 'image', row)}.dcm"


def _case(cohort: Cohort, patient: int) -> str:
    return f"10000{stream(cohort.seed, 'case').key % 89 + 10}-{patient:06d}"


def _computed(cohort: Cohort) -> Flags:
    return stream(cohort.seed, "modality").numpy.random(len(cohort)) < COMPUTED


def _view(cohort: Cohort, row: int) -> str:
    """The header's view; missing in three of ten."""
    if row * 7919 % 10 < 3:
        return ""
    return "LATERAL" if cohort.lateral[row] else "AP" if cohort.supine[row] else "PA"


def _save(root: Path, cohort: Cohort, computed: Flags, row: int, pixels: Pixels) -> None:
    maker, model = SCANNERS[cohort.names[cohort.domain[row]]]
    header = {
        "SOPInstanceUID": dicom_file.uid(cohort.seed, "image", row),
        "StudyInstanceUID": dicom_file.uid(cohort.seed, "study", int(cohort.study_index[row])),
        "SeriesInstanceUID": dicom_file.uid(cohort.seed, "series", row),
        "Modality": "CR" if computed[row] else "DX",
        "PatientID": _case(cohort, int(cohort.patient[row])),
        "PatientName": "",
        "PatientSex": "M" if cohort.male[row] else "F",
        "PatientAge": f"{cohort.age[row]:03d}Y",
        "StudyDate": f"2020{1 + row % 12:02d}{1 + row % 28:02d}",
        "ViewPosition": _view(cohort, row),
        "Manufacturer": maker,
        "ManufacturerModelName": model,
    }
    dicom_file.save(root / path_of(cohort, row), pixels, header, 0.48, stream(cohort.seed, "dicom", row).numpy)


def _first(groups: Numbers) -> Numbers:
    return np.flatnonzero(np.r_[True, np.diff(groups) > 0])


def _listed(*words: object) -> str:
    """A list as the export prints it."""
    return str(list(words))


def case_table(cohort: Cohort) -> pd.DataFrame:
    rows = _first(cohort.patient)
    rng = stream(cohort.seed, "cases").numpy
    ids = [_case(cohort, int(p)) for p in cohort.patient[rows]]
    states = [cohort.names[d] for d in cohort.domain[rows]]
    shares = np.array([share for _, share in RACES])
    race = np.array([name for name, _ in RACES], dtype=object)[rng.choice(len(RACES), len(rows), p=shares)]
    # A few zip codes are suppressed, as for places with few inhabitants.
    zips = [
        "000" if chance < 0.01 else f"{ZIPS[s][0] + int(where * (ZIPS[s][1] - ZIPS[s][0] + 1)):03d}"
        for s, where, chance in zip(states, rng.random(len(rows)), rng.random(len(rows)), strict=True)
    ]
    old = cohort.age[rows] > 89
    return pd.DataFrame(
        {
            "type": "case",
            "project_id": [PROJECTS[s] for s in states],
            "submitter_id": ids,
            "datasets.submitter_id": "phantom",
            "age_at_index": np.where(old, "", cohort.age[rows].astype(str)),
            "age_at_index_gt89": np.where(old, "Yes", "No"),
            "case_ids": [_listed(i) for i in ids],
            "country_of_residence": "United States of America",
            "covid19_positive": np.where(cohort.positive[rows], "Yes", "No"),
            "ethnicity": np.where(rng.random(len(rows)) < 0.15, "Hispanic or Latino", "Not Hispanic or Latino"),
            "icu_indicator": "Not Reported",
            "index_event": "COVID-19 Test",
            "race": race,
            "sex": np.where(cohort.male[rows], "Male", "Female"),
            "site_id": [f"{s}-1" for s in states],
            "ventilator_indicator": "Not Reported",
            "zip": zips,
        }
    )


def study_table(cohort: Cohort) -> pd.DataFrame:
    rows = _first(cohort.study_index)
    rng = stream(cohort.seed, "tests").numpy
    # One positive test in twelve lies weeks away from the study: the label is the case's, not the image's.
    days = np.where(rng.random(len(rows)) < 1 / 12, rng.integers(20, 60, len(rows)), rng.integers(-6, 7, len(rows)))
    ids = [_case(cohort, int(p)) for p in cohort.patient[rows]]
    uids = [dicom_file.uid(cohort.seed, "study", int(s)) for s in cohort.study_index[rows]]
    old = cohort.age[rows] > 89
    computed = _computed(cohort)[rows]
    tests = [_listed(int(d)) for d in days]
    return pd.DataFrame(
        {
            "type": "imaging_study",
            "submitter_id": uids,
            "cases.submitter_id": ids,
            "age_at_imaging": np.where(old, "", cohort.age[rows].astype(str)),
            "age_at_imaging_gt89": np.where(old, "Yes", "No"),
            "body_part_examined": _listed("CHEST"),
            "case_ids": [_listed(i) for i in ids],
            "days_from_study_to_neg_covid_test": np.where(cohort.positive[rows], "", tests),
            "days_from_study_to_pos_covid_test": np.where(cohort.positive[rows], tests, ""),
            "days_to_study": rng.integers(0, 30, len(rows)) + 40 * cohort.study[rows],
            "loinc_code": "36643-5",
            "loinc_long_common_name": "XR Chest 2 Views",
            "loinc_method": "XR",
            "loinc_system": "Chest",
            "study_description": np.where(cohort.supine[rows], "XR CHEST PORTABLE", "XR CHEST 2 VIEWS"),
            "study_modality": [_listed("CR" if c else "DX") for c in computed],
            "study_uid": uids,
            "study_year": 2020,
            "study_year_shifted": "No",
        }
    )


def series_table(cohort: Cohort, root: Path) -> pd.DataFrame:
    """One row an image, CR and DX together; sizes and checksums are those of the files just written."""
    records: list[dict[str, object]] = []
    for row, computed in enumerate(_computed(cohort).tolist()):
        content = (root / path_of(cohort, row)).read_bytes()
        series = dicom_file.uid(cohort.seed, "series", row)
        study = dicom_file.uid(cohort.seed, "study", int(cohort.study_index[row]))
        maker, model = SCANNERS[cohort.names[cohort.domain[row]]]
        kind = "CR" if computed else "DX"
        checksum = hashlib.md5(content, usedforsecurity=False).hexdigest()
        records.append(
            {
                "type": f"{kind.lower()}_series_file",
                "submitter_id": series,
                "imaging_studies.submitter_id": study,
                "data_category": kind,
                "data_format": "DCM",
                "data_type": "DICOM",
                "file_name": f"{_case(cohort, int(cohort.patient[row]))}/{study}/{series}.zip",
                "file_size": len(content),
                "md5sum": checksum,
                "case_ids": _listed(_case(cohort, int(cohort.patient[row]))),
                "image_type": _listed("ORIGINAL", "PRIMARY"),
                "lossy_image_compression": "00",
                "manufacturer": maker,
                "manufacturer_model_name": model,
                "modality": kind,
                "object_id": f"dg.MD1R/{uuid.UUID(hex=checksum)}",
                "series_description": "CHEST",
                "series_uid": series,
                "view_position": _listed(_view(cohort, row)) if _view(cohort, row) else "",
                "number_of_instances": 1,
            }
        )
    return pd.DataFrame(records)
