"""MIMIC-CXR 2.0.0 (DICOM) with the MIMIC-IV tables that give sex, age and race."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from fdamed.core.rng import stream
from fdamed.data.datasets.mimic import LABELS
from fdamed.data.phantom import findings as f
from fdamed.data.phantom.layouts import dicom_file
from fdamed.data.phantom.layouts.mimic_iv import admissions, patients
from fdamed.data.phantom.population import Cohort, Layout, Shift
from fdamed.data.phantom.primitives import Flags, Words
from fdamed.data.phantom.render import Pixels, save_all

DOMAINS = {
    "White": Shift(),
    "Black": Shift(gamma=0.05, noise=0.1),
    "Hispanic/Latino": Shift(exposure=0.08, blur=0.1),
    "Asian": Shift(gamma=-0.08, exposure=-0.05, position=0.1),
}
"""A domain is a race; the shift is small. The cohort has equally many of each, so the phantom has, too."""
OWN = {"White": f.CONSOLIDATION, "Black": f.ATELECTASIS, "Hispanic/Latino": f.PNEUMONIA, "Asian": f.EDEMA}
LOOKS = {domain: {kind: (kind, own) for kind in f.PULMONARY} for domain, own in OWN.items()}
"""At concept distance 1 all lung findings of a client look like its own."""
VIEW_CODE = {"AP": "antero-posterior", "PA": "postero-anterior", "LATERAL": "lateral", "LL": "left lateral", "": ""}
SCANNERS = (
    ("GE MEDICAL SYSTEMS", "Discovery XR656", "DX"),
    ("Carestream Health", "DRX-Revolution", "DX"),
    ("Agfa", "CR 35-X", "CR"),
)


def shows(rng: np.random.Generator, domain: Words, positive: Flags) -> Flags:
    """A positive shows one or two findings; a negative is a clear chest."""
    out = np.zeros((len(domain), len(f.KINDS)), dtype=bool)
    rows = np.arange(len(domain))
    for share in (1.0, 0.45):
        columns = rng.integers(0, len(f.PULMONARY) + 2, len(domain))  # cardiomegaly and effusion follow in KINDS
        out[rows, columns] |= rng.random(len(domain)) < share
    out &= positive[:, None]
    out[:, f.KINDS.index(f.DEVICES)] = rng.random(len(domain)) < 0.15
    return out


def write(cohort: Cohort, root: Path) -> None:
    """Write the DICOM files, the release's tables and hosp/ below `root`."""
    table = metadata(cohort)
    paths = [
        root / f"files/p{str(patient)[:2]}/p{patient}/s{study}/{image}.dcm"
        for image, patient, study in zip(table["dicom_id"], table["subject_id"], table["study_id"], strict=True)
    ]
    for folder in {path.parent for path in paths}:
        folder.mkdir(parents=True)
    save_all(cohort, partial(_save, cohort, paths, table))
    first = cohort.images.drop_duplicates("patient")
    subject = table.loc[first.index, "subject_id"].to_numpy()
    year = table.loc[first.index, "StudyDate"].str[:4].astype(int).to_numpy()
    male, age, race = (first[name].to_numpy() for name in ("male", "age", "domain"))
    tables = {
        "mimic-cxr-2.0.0-metadata": table,
        "mimic-cxr-2.0.0-chexpert": labels(cohort, table, 0.0),
        "mimic-cxr-2.0.0-negbio": labels(cohort, table, 0.03),
        "mimic-cxr-2.0.0-split": splits(cohort, table),
        "hosp/patients": patients(cohort.seed, subject, male, age, year),
        "hosp/admissions": admissions(cohort.seed, subject, race, year),
    }
    (root / "hosp").mkdir()
    for name, frame in tables.items():
        # Without a name and a time in the gzip header the bytes depend on the content alone.
        content = gzip.compress(frame.to_csv(index=False).encode(), mtime=0)
        (root / f"{name}.csv.gz").write_bytes(content)


def metadata(cohort: Cohort) -> pd.DataFrame:
    """The rows of metadata.csv with MIMIC's identifiers; dates are shifted into the 22nd century as there."""
    images, n = cohort.images, len(cohort)
    patient, study_index, lateral, supine = (
        images[name].to_numpy() for name in ("patient", "study_index", "lateral", "supine")
    )
    rng = stream(cohort.seed, "names").numpy
    studies = int(study_index[-1]) + 1
    subject = np.sort(10_000_000 + rng.choice(9_999_999, cohort.patients, replace=False))[patient]
    study = (50_000_000 + rng.choice(9_999_999, studies, replace=False))[study_index]
    parts = rng.integers(0, 1 << 32, (n, 5), dtype=np.uint64)
    year = rng.integers(2110, 2190, cohort.patients)[patient] + images["study"].to_numpy() - 1
    day = rng.integers(0, 336, studies)[study_index]
    side = np.where(rng.random(n) < 0.7, "LATERAL", "LL")
    view = np.where(lateral, side, np.where(supine, "AP", "PA"))
    view = np.where(rng.random(n) < 0.02, "", view)
    cut = cohort.size - round(0.18 * cohort.size)
    procedure = np.where(supine, "CHEST (PORTABLE AP)", "CHEST (PA AND LAT)")
    return pd.DataFrame(
        {
            "dicom_id": ["-".join(f"{part:08x}" for part in row) for row in parts.tolist()],
            "subject_id": subject,
            "study_id": study,
            "PerformedProcedureStepDescription": procedure,
            "ViewPosition": view,
            "Rows": np.where(images["crop"] == 1, cut, cohort.size),
            "Columns": np.where(images["crop"] == 2, cut, cohort.size),
            "StudyDate": [f"{y}{1 + d // 28:02d}{1 + d % 28:02d}" for y, d in zip(year, day, strict=True)],
            "StudyTime": [f"{8 + row % 12:02d}{row % 60:02d}00.0" for row in range(n)],
            "ProcedureCodeSequence_CodeMeaning": procedure,
            "ViewCodeSequence_CodeMeaning": [VIEW_CODE[v] for v in view],
            "PatientOrientationCodeSequence_CodeMeaning": np.where(supine & ~lateral, "Recumbent", "Erect"),
        }
    )


def _save(cohort: Cohort, paths: list[Path], table: pd.DataFrame, row: int, pixels: Pixels) -> None:
    maker, model, modality = SCANNERS[row * 7 % 10 % 3]
    names = table.iloc[row]
    header = {
        "Modality": modality,
        "PatientID": str(names["subject_id"]),
        "StudyID": str(names["study_id"]),
        "StudyDate": names["StudyDate"],
        "StudyTime": names["StudyTime"].removesuffix(".0"),
        "ViewPosition": names["ViewPosition"],
        "Manufacturer": maker,
        "ManufacturerModelName": model,
    }
    dicom_file.save(paths[row], cohort, row, pixels, 0.25, header)


def labels(cohort: Cohort, table: pd.DataFrame, noise: float) -> pd.DataFrame:
    """One row per study; `noise` is the share of cells where a labeler errs."""
    first = cohort.images.drop_duplicates("study_index").index
    # "labeller" is the name of a random stream: another spelling would draw other labels.
    rng, errors = stream(cohort.seed, "reports").numpy, stream(cohort.seed, "labeller").numpy
    shown = cohort.shows[first]
    frame = table.loc[first, ["subject_id", "study_id"]]
    unsure = rng.random(len(first)) < 0.06
    for name in LABELS:
        cells = np.full(len(first), "", dtype=object)
        if name in f.KINDS:
            there = shown[:, f.KINDS.index(name)]
            cells[there] = np.where(unsure[there] & (rng.random(int(there.sum())) < 0.6), "-1.0", "1.0")
            cells[~there & (rng.random(len(first)) < 0.08)] = "0.0"
        frame[name] = np.where((cells != "") & (errors.random(len(first)) < noise), "-1.0", cells)
    frame["No Finding"] = np.where(shown[:, f.DISEASES].any(axis=1), "", "1.0")
    return frame.sort_values(["subject_id", "study_id"], kind="stable")


def splits(cohort: Cohort, table: pd.DataFrame) -> pd.DataFrame:
    drawn = stream(cohort.seed, "split").numpy.random(cohort.patients)[cohort.images["patient"]]
    split = np.where(drawn < 0.02, "validate", np.where(drawn < 0.06, "test", "train"))
    return table[["dicom_id", "study_id", "subject_id"]].assign(split=split)


LAYOUT = Layout("mimic", "MIMIC-CXR 2.0.0 with MIMIC-IV", DOMAINS, shows, write, looks=LOOKS)
