"""The cohort as MIMIC-CXR 2.0.0 (DICOM) with the MIMIC-IV tables that give sex, age and race."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from fdamed.config.datasets import Phantom
from fdamed.core.rng import stream
from fdamed.data.datasets.mimic import LABELS
from fdamed.data.phantom import findings as f
from fdamed.data.phantom.population import Cohort, Numbers, draw_cohort
from fdamed.data.phantom.render import Pixels, save_all
from fdamed.data.phantom.rules import any_finding
from fdamed.data.phantom.trees import dicom_file
from fdamed.data.phantom.trees.mimic_iv import admissions, patients

VIEW_CODE = {"AP": "antero-posterior", "PA": "postero-anterior", "LATERAL": "lateral", "LL": "left lateral", "": ""}
SCANNERS = (
    ("GE MEDICAL SYSTEMS", "Discovery XR656", "DX"),
    ("Carestream Health", "DRX-Revolution", "DX"),
    ("Agfa", "CR 35-X", "CR"),
)


@dataclass(frozen=True)
class Names:
    """Identifiers in MIMIC's forms, one an image; dates are shifted into the 22nd century as there."""

    subject: Numbers
    study: Numbers
    dicom: list[str]
    year: Numbers
    date: list[str]
    view: list[str]

    def path(self, row: int) -> str:
        subject = self.subject[row]
        return f"files/p{str(subject)[:2]}/p{subject}/s{self.study[row]}/{self.dicom[row]}.dcm"


def cohort_of(phantom: Phantom) -> Cohort:
    return draw_cohort(phantom, "mimic", any_finding)


def fill(phantom: Phantom, root: Path) -> None:
    """Write the DICOM tree, the release's tables and hosp/ below `root`."""
    cohort = cohort_of(phantom)
    names = names_of(cohort)
    for folder in {(root / names.path(row)).parent for row in range(len(cohort))}:
        folder.mkdir(parents=True)
    save_all(cohort, partial(_save, root, cohort, names))
    _release(root, "metadata", metadata(cohort, names))
    for name, noise in (("chexpert", 0.0), ("negbio", 0.03)):
        _release(root, name, labels(cohort, names, noise))
    _release(root, "split", splits(cohort, names))
    first = np.flatnonzero(np.r_[True, np.diff(cohort.patient) > 0])
    people = (names.subject[first], cohort.male[first], cohort.age[first], names.year[first])
    (root / "hosp").mkdir()
    _packed(root / "hosp" / "patients.csv.gz", patients(cohort.seed, *people))
    races = np.array(cohort.names, dtype=object)[cohort.domain[first]]
    admitted = admissions(cohort.seed, names.subject[first], races, names.year[first])
    _packed(root / "hosp" / "admissions.csv.gz", admitted)


def names_of(cohort: Cohort) -> Names:
    rng = stream(cohort.seed, "names").numpy
    people, studies = int(cohort.patient.max()) + 1, int(cohort.study_index.max()) + 1
    subject = np.sort(10_000_000 + rng.choice(9_999_999, people, replace=False))[cohort.patient]
    study = (50_000_000 + rng.choice(9_999_999, studies, replace=False))[cohort.study_index]
    words = rng.integers(0, 1 << 32, (len(cohort), 5), dtype=np.uint64)
    begin = rng.integers(2110, 2190, people)
    year = begin[cohort.patient] + cohort.study - 1
    day = rng.integers(0, 336, studies)[cohort.study_index]
    side = np.where(rng.random(len(cohort)) < 0.7, "LATERAL", "LL")
    view = np.where(cohort.lateral, side, np.where(cohort.supine, "AP", "PA"))
    view = np.where((rng.random(len(cohort)) < 0.02), "", view)
    return Names(
        subject=subject,
        study=study,
        dicom=["-".join(f"{w:08x}" for w in row) for row in words.tolist()],
        year=year,
        date=[f"{y}{1 + d // 28:02d}{1 + d % 28:02d}" for y, d in zip(year.tolist(), day.tolist(), strict=True)],
        view=view.tolist(),
    )


def _save(root: Path, cohort: Cohort, names: Names, row: int, pixels: Pixels) -> None:
    maker, model, modality = SCANNERS[row * 7 % 10 % 3]
    header = {
        "SOPInstanceUID": dicom_file.uid(cohort.seed, "image", row),
        "StudyInstanceUID": dicom_file.uid(cohort.seed, "study", int(cohort.study_index[row])),
        "SeriesInstanceUID": dicom_file.uid(cohort.seed, "series", row),
        "Modality": modality,
        "PatientID": str(names.subject[row]),
        "PatientName": "",
        "PatientSex": "M" if cohort.male[row] else "F",
        "PatientAge": f"{cohort.age[row]:03d}Y",
        "StudyID": str(names.study[row]),
        "StudyDate": names.date[row],
        "StudyTime": f"{8 + row % 12:02d}{row % 60:02d}00",
        "ViewPosition": names.view[row],
        "Manufacturer": maker,
        "ManufacturerModelName": model,
    }
    dicom_file.save(root / names.path(row), pixels, header, 0.25, stream(cohort.seed, "dicom", row).numpy)


def metadata(cohort: Cohort, names: Names) -> pd.DataFrame:
    cut = cohort.size - round(0.18 * cohort.size)
    side = np.where(cohort.lateral, "Erect", np.where(cohort.supine, "Recumbent", "Erect"))
    return pd.DataFrame(
        {
            "dicom_id": names.dicom,
            "subject_id": names.subject,
            "study_id": names.study,
            "PerformedProcedureStepDescription": np.where(cohort.supine, "CHEST (PORTABLE AP)", "CHEST (PA AND LAT)"),
            "ViewPosition": names.view,
            "Rows": np.where(cohort.crop == 1, cut, cohort.size),
            "Columns": np.where(cohort.crop == 2, cut, cohort.size),
            "StudyDate": names.date,
            "StudyTime": [f"{8 + row % 12:02d}{row % 60:02d}00.0" for row in range(len(cohort))],
            "ProcedureCodeSequence_CodeMeaning": np.where(cohort.supine, "CHEST (PORTABLE AP)", "CHEST (PA AND LAT)"),
            "ViewCodeSequence_CodeMeaning": [VIEW_CODE[v] for v in names.view],
            "PatientOrientationCodeSequence_CodeMeaning": side,
        }
    )


def labels(cohort: Cohort, names: Names, noise: float) -> pd.DataFrame:
    """One row a study; `noise` is the share of cells where a labeller errs."""
    first = np.flatnonzero(np.r_[True, np.diff(cohort.study_index) > 0])
    rng = stream(cohort.seed, "reports").numpy
    shows = cohort.shows[first]
    frame = pd.DataFrame({"subject_id": names.subject[first], "study_id": names.study[first]})
    unsure = rng.random(len(first)) < 0.06
    clear = ~shows[:, [i for i, k in enumerate(f.KINDS) if k != f.DEVICES]].any(axis=1)
    errs = stream(cohort.seed, "labeller").numpy
    for name in LABELS:
        cells = np.full(len(first), "", dtype=object)
        if name in f.KINDS:
            there = shows[:, f.KINDS.index(name)]
            cells[there] = np.where(unsure[there] & (rng.random(int(there.sum())) < 0.6), "-1.0", "1.0")
            cells[~there & (rng.random(len(first)) < 0.08)] = "0.0"
        cells = np.where((cells != "") & (errs.random(len(first)) < noise), "-1.0", cells)
        frame[name] = cells
    frame["No Finding"] = np.where(clear, "1.0", "")
    return frame.sort_values(["subject_id", "study_id"], kind="stable").reset_index(drop=True)


def splits(cohort: Cohort, names: Names) -> pd.DataFrame:
    people = int(cohort.patient.max()) + 1
    chance = stream(cohort.seed, "split").numpy.random(people)[cohort.patient]
    split = np.where(chance < 0.02, "validate", np.where(chance < 0.06, "test", "train"))
    return pd.DataFrame({"dicom_id": names.dicom, "study_id": names.study, "subject_id": names.subject, "split": split})


def _release(root: Path, name: str, frame: pd.DataFrame) -> None:
    _packed(root / f"mimic-cxr-2.0.0-{name}.csv.gz", frame)


def _packed(path: Path, frame: pd.DataFrame) -> None:
    # Without a name and a time in the gzip header the bytes depend on the content alone.
    path.write_bytes(gzip.compress(frame.to_csv(index=False).encode(), mtime=0))
