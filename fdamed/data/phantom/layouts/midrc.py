"""A MIDRC export: Gen3 nodes as TSV and the unpacked DICOM series."""

from __future__ import annotations

import hashlib
import uuid
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from fdamed.core.rng import stream
from fdamed.data.datasets.midrc import STATES
from fdamed.data.phantom import findings as f
from fdamed.data.phantom.layouts import columns, dicom_file
from fdamed.data.phantom.layouts.dicom_file import uids
from fdamed.data.phantom.population import Cohort, Layout, Shift
from fdamed.data.phantom.primitives import Flags, Words
from fdamed.data.phantom.render import Pixels, save_all

DOMAINS = {
    "IL": Shift(gamma=-0.8, exposure=0.9, noise=0.8, blur=0.5, position=0.8, prevalence=0.62, weight=16203.0),
    "NC": Shift(gamma=0.9, exposure=-0.6, noise=0.1, blur=0.0, position=0.2, prevalence=0.54, weight=3717.0),
    "CA": Shift(gamma=-0.3, exposure=0.3, noise=1.0, blur=0.2, position=0.6, prevalence=0.28, weight=560.0),
    "IN": Shift(gamma=0.5, exposure=0.2, noise=0.3, blur=1.0, position=0.3, prevalence=0.62, weight=557.0),
    "TX": Shift(gamma=0.2, exposure=-0.6, noise=0.6, blur=0.6, position=0.3, prevalence=0.16, weight=501.0),
}
"""A domain is a state; the shift is large, weights and positive rates are those of the published cohort."""
OWN = {"NC": f.CONSOLIDATION, "CA": f.ATELECTASIS, "IN": f.EDEMA, "TX": f.PNEUMONIA}
LOOKS = {state: {f.COVID: (f.COVID, own), own: (own, f.COVID)} for state, own in OWN.items()}
"""At concept distance 1 a state's COVID-19 looks like another disease, and that disease there like COVID-19 in IL."""
OTHER_DISEASE = {True: 0.1, False: 0.4}
"""Share of the positives and of the negatives with another lung disease: haze alone is a poor sign."""
PROJECTS = {"IL": "Open-A1", "NC": "Open-R1", "CA": "Open-R1", "IN": "Open-A1", "TX": "Open-R1"}
SCANNERS = {
    "IL": ("GE Healthcare", "Optima XR240amx"),
    "NC": ("Philips Medical Systems", "DigitalDiagnost"),
    "CA": ("FUJIFILM Corporation", "0000"),
    "IN": ("Agfa", "DXD30_Wireless"),
    "TX": ("Carestream Health", "DRX-Revolution"),
}
RACES = {
    "White": 0.45,
    "Black or African American": 0.30,
    "Asian": 0.06,
    "Other": 0.09,
    "American Indian or Alaska Native": 0.01,
    "Not Reported": 0.09,
}
COMPUTED = 0.6
"""Share of the images that are CR; the others are DX."""


def shows(rng: np.random.Generator, domain: Words, positive: Flags) -> Flags:
    """A positive shows ground glass on both sides; a negative may have any other lung disease."""
    out = f.incidental(rng, len(domain))
    other = rng.integers(1, len(f.PULMONARY), len(domain))
    share = np.where(positive, OTHER_DISEASE[True], OTHER_DISEASE[False])
    also = np.flatnonzero(rng.random(len(domain)) < share)
    out[also, other[also]] = True
    out[:, f.KINDS.index(f.COVID)] = positive
    return out


def write(cohort: Cohort, root: Path) -> None:
    """Write the node tables and one folder for each series below `root`."""
    modality = np.where(stream(cohort.seed, "modality").numpy.random(len(cohort)) < COMPUTED, "CR", "DX")
    for row in range(len(cohort)):
        _path(root, cohort, row).parent.mkdir(parents=True)
    save_all(cohort, partial(_save, root, cohort, modality))
    series = pd.DataFrame([_series(cohort, row, modality[row], root) for row in range(len(cohort))])
    tables = {"case": _cases(cohort), "imaging_study": _studies(cohort, modality)}
    tables |= {f"{kind.lower()}_series_file": series[series["modality"] == kind] for kind in ("CR", "DX")}
    for name, table in tables.items():
        table.to_csv(root / f"{name}.tsv", sep="\t", index=False)


def _path(root: Path, cohort: Cohort, row: int) -> Path:
    """A series comes as <uid>.zip and unpacks to <uid>/<uid>/*.dcm."""
    _, series, instance = uids(cohort, row)
    return root / series / series / f"{instance}.dcm"


def _case(cohort: Cohort, row: int) -> str:
    return f"10000{stream(cohort.seed, 'case').key % 89 + 10}-{cohort.images['patient'][row]:06d}"


def _view(cohort: Cohort, row: int) -> str:
    """The header's view; missing in three of ten."""
    if row * 7919 % 10 < 3:
        return ""
    image = cohort.images.loc[row]
    return "LATERAL" if image.lateral else "AP" if image.supine else "PA"


def _save(root: Path, cohort: Cohort, modality: Words, row: int, pixels: Pixels) -> None:
    maker, model = SCANNERS[cohort.images["domain"][row]]
    header = {
        "Modality": str(modality[row]),
        "PatientID": _case(cohort, row),
        "StudyDate": f"2020{1 + row % 12:02d}{1 + row % 28:02d}",
        "ViewPosition": _view(cohort, row),
        "Manufacturer": maker,
        "ManufacturerModelName": model,
    }
    dicom_file.save(_path(root, cohort, row), cohort, row, pixels, 0.48, header)


def _cases(cohort: Cohort) -> pd.DataFrame:
    rows = cohort.images.drop_duplicates("patient")
    rng = stream(cohort.seed, "cases").numpy
    ids = [_case(cohort, row) for row in rows.index]
    states = rows["domain"].to_numpy()
    ranges = [[int(end) for end in STATES[state][0].split("-")] for state in states]
    zips = [
        f"{low + int(where * (high - low + 1)):03d}"
        for (low, high), where in zip(ranges, rng.random(len(rows)), strict=True)
    ]
    suppressed = rng.random(len(rows)) < 0.01  # as for places with few inhabitants
    old = rows["age"].to_numpy() > 89
    return pd.DataFrame(
        columns("case")
        | {
            "project_id": [PROJECTS[s] for s in states],
            "submitter_id": ids,
            "age_at_index": np.where(old, "", rows["age"].astype(str)),
            "age_at_index_gt89": np.where(old, "Yes", "No"),
            "case_ids": [str([i]) for i in ids],
            "covid19_positive": np.where(rows["positive"], "Yes", "No"),
            "ethnicity": np.where(rng.random(len(rows)) < 0.15, "Hispanic or Latino", "Not Hispanic or Latino"),
            "race": rows["race"],
            "sex": np.where(rows["male"], "Male", "Female"),
            "site_id": [f"{s}-1" for s in states],
            "zip": np.where(suppressed, "000", zips),
        }
    )


def _studies(cohort: Cohort, modality: Words) -> pd.DataFrame:
    rows = cohort.images.drop_duplicates("study_index")
    rng = stream(cohort.seed, "tests").numpy
    # One positive test in twelve lies weeks away from the study: the label is the case's, not the image's.
    days = np.where(rng.random(len(rows)) < 1 / 12, rng.integers(20, 60, len(rows)), rng.integers(-6, 7, len(rows)))
    ids = [_case(cohort, row) for row in rows.index]
    studies = [uids(cohort, row)[0] for row in rows.index]
    old = rows["age"].to_numpy() > 89
    tests = [str([d]) for d in days.tolist()]
    return pd.DataFrame(
        columns("imaging_study")
        | {
            "submitter_id": studies,
            "cases.submitter_id": ids,
            "age_at_imaging": np.where(old, "", rows["age"].astype(str)),
            "age_at_imaging_gt89": np.where(old, "Yes", "No"),
            "case_ids": [str([i]) for i in ids],
            "days_from_study_to_neg_covid_test": np.where(rows["positive"], "", tests),
            "days_from_study_to_pos_covid_test": np.where(rows["positive"], tests, ""),
            "days_to_study": rng.integers(0, 30, len(rows)) + 40 * rows["study"].to_numpy(),
            "study_description": np.where(rows["supine"], "XR CHEST PORTABLE", "XR CHEST 2 VIEWS"),
            "study_modality": [f"['{kind}']" for kind in modality[rows.index]],
            "study_uid": studies,
        }
    )


def _series(cohort: Cohort, row: int, modality: str, root: Path) -> dict[str, object]:
    """The record of one image; size and checksum are those of the file just written."""
    content = _path(root, cohort, row).read_bytes()
    study, series, _ = uids(cohort, row)
    maker, model = SCANNERS[cohort.images["domain"][row]]
    checksum = hashlib.md5(content, usedforsecurity=False).hexdigest()
    case, view = _case(cohort, row), _view(cohort, row)
    return columns("series_file") | {
        "type": f"{modality.lower()}_series_file",
        "submitter_id": series,
        "imaging_studies.submitter_id": study,
        "data_category": modality,
        "file_name": f"{case}/{study}/{series}.zip",
        "file_size": len(content),
        "md5sum": checksum,
        "case_ids": str([case]),
        "manufacturer": maker,
        "manufacturer_model_name": model,
        "modality": modality,
        "object_id": f"dg.MD1R/{uuid.UUID(hex=checksum)}",
        "series_uid": series,
        "view_position": str([view]) if view else "",
    }


LAYOUT = Layout("midrc", "a MIDRC export (Gen3)", DOMAINS, shows, write, RACES, LOOKS, change=0.0)
"""The test result belongs to the case, so studies of one case agree."""
