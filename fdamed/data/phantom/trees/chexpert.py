"""The cohort as CheXpert-v1.0-small: train/ and valid/ with JPEG images, train.csv, valid.csv, and the race table."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from fdamed.config.datasets import Phantom
from fdamed.core.rng import stream
from fdamed.data.datasets.chexpert import COLUMNS
from fdamed.data.datasets.chexpert import CONDITIONS as LABELS
from fdamed.data.phantom import findings as f
from fdamed.data.phantom.population import Cohort, Flags, draw_cohort
from fdamed.data.phantom.render import Pixels, save_all
from fdamed.data.phantom.rules import conditions

RELEASE = "CheXpert-v1.0-small"
VALID = 0.03
"""Share of the patients in valid.csv, where every label is read."""
FIRST_VALID = 64541
READ_FULLY = 0.12
"""Share of patients whose reports mention all five conditions: they fit several clients."""
RACES = (
    ("White, non-Hispanic", 0.5),
    ("Asian, non-Hispanic", 0.14),
    ("Black or African American", 0.08),
    ("White, Hispanic", 0.05),
    ("Other, Hispanic", 0.09),
    ("Other", 0.06),
    ("Unknown", 0.05),
    ("Native Hawaiian or Other Pacific Islander", 0.02),
    ("White or Caucasian", 0.01),
)


def cohort_of(phantom: Phantom) -> Cohort:
    return draw_cohort(phantom, "chexpert", conditions, change=0.12)


def fill(phantom: Phantom, root: Path) -> None:
    """Write the whole release below `root`."""
    cohort = cohort_of(phantom)
    paths, valid = paths_of(cohort)
    for folder in {(root / path).parent for path in paths}:
        folder.mkdir(parents=True)
    save_all(cohort, partial(_save, root, paths))
    table = table_of(cohort, paths, valid)
    for name, rows in (("train", ~valid), ("valid", valid)):
        table[rows].to_csv(root / RELEASE / f"{name}.csv", index=False)
    _races(cohort, paths).to_csv(root / "CHEXPERT DEMO.csv", index=False)


def paths_of(cohort: Cohort) -> tuple[NDArray[np.object_], Flags]:
    """Path of each image as the tables print it, and whether it belongs to valid.csv."""
    people = int(cohort.patient.max()) + 1
    held_out = stream(cohort.seed, "valid").numpy.random(people) < VALID
    number = np.where(held_out, FIRST_VALID - 1 + np.cumsum(held_out), np.cumsum(~held_out))
    valid = held_out[cohort.patient]
    side = np.where(cohort.lateral, "lateral", "frontal")
    table = np.where(valid, "valid", "train")
    paths = [
        f"{RELEASE}/{t}/patient{p:05d}/study{s}/view{v}_{kind}.jpg"
        for t, p, s, v, kind in zip(table, number[cohort.patient], cohort.study, cohort.view, side, strict=True)
    ]
    return np.array(paths, dtype=object), valid


def _save(root: Path, paths: NDArray[np.object_], row: int, pixels: Pixels) -> None:
    Image.fromarray((pixels >> 4).astype(np.uint8)).save(root / paths[row], "JPEG", quality=90)


def table_of(cohort: Cohort, paths: NDArray[np.object_], valid: Flags) -> pd.DataFrame:
    """The rows of train.csv and valid.csv; labels belong to the study, so all its images share them."""
    labels = _labels(cohort, valid)[cohort.study_index]
    unknown = int(np.flatnonzero(~valid)[len(cohort) // 3 % int((~valid).sum())])
    sex = np.where(cohort.male, "Male", "Female").astype(object)
    sex[cohort.patient == cohort.patient[unknown]] = "Unknown"
    rng = stream(cohort.seed, "projection").numpy
    lying = np.where(rng.random(len(cohort)) < 0.001, "LL", "AP")
    projection = np.where(cohort.lateral, "", np.where(cohort.supine, lying, "PA"))
    frame = pd.DataFrame(
        {
            "Path": paths,
            "Sex": sex,
            "Age": cohort.age,
            "Frontal/Lateral": np.where(cohort.lateral, "Lateral", "Frontal"),
            "AP/PA": projection,
        }
    )
    for i, name in enumerate(LABELS):
        frame[name] = labels[:, i]
    return frame[list(COLUMNS)]


def _labels(cohort: Cohort, valid: Flags) -> NDArray[np.object_]:
    """(studies, 14) of "1.0", "0.0", "-1.0" and "": the labels of each study's report."""
    first = np.flatnonzero(np.r_[True, np.diff(cohort.study_index) > 0])
    rng = stream(cohort.seed, "reports").numpy
    people = int(cohort.patient.max()) + 1
    fully = (rng.random(people) < READ_FULLY)[cohort.patient[first]] | valid[first]
    own = np.array(cohort.names, dtype=object)[cohort.domain[first]]
    out = np.full((len(first), len(LABELS)), "", dtype=object)
    strict = valid[first]
    for j, name in enumerate(LABELS):
        if name not in f.KINDS:
            out[strict, j] = "0.0"
            continue
        truth = np.where(cohort.shows[first][:, f.KINDS.index(name)], "1.0", "0.0").astype(object)
        if name in f.PULMONARY:
            said = fully | (own == name)
            out[said, j] = truth[said]
            share = np.where(own == name, 0.06, np.where(truth == "1.0", 0.25, 0.01))
            doubt = ~strict & (rng.random(len(first)) < share)
            out[doubt, j] = "-1.0"
        else:
            said = strict | ((truth == "1.0") & (rng.random(len(first)) < 0.8)) | (rng.random(len(first)) < 0.05)
            out[said, j] = truth[said]
    return _derived(out, cohort.shows[first], strict)


def _derived(out: NDArray[np.object_], shows: Flags, strict: Flags) -> NDArray[np.object_]:
    """Lung Opacity and No Finding follow from the others; No Finding is never 0 in train.csv."""
    at = LABELS.index
    opaque = (out[:, [at(k) for k in f.PULMONARY if k != f.ATELECTASIS]] == "1.0").any(axis=1)
    out[opaque, at("Lung Opacity")] = "1.0"
    diseases = [i for i, name in enumerate(LABELS) if name not in ("No Finding", "Support Devices")]
    clear = ~shows[:, : len(f.KINDS)][:, [k for k, n in enumerate(f.KINDS) if n != f.DEVICES]].any(axis=1)
    clear &= ~np.isin(out[:, diseases], ("1.0", "-1.0")).any(axis=1)
    out[:, 0] = np.where(clear, "1.0", np.where(strict, "0.0", ""))
    return out


def _races(cohort: Cohort, paths: NDArray[np.object_]) -> pd.DataFrame:
    """The demographics table that the release's owner publishes beside it; here as CSV."""
    first = np.flatnonzero(np.r_[True, np.diff(cohort.patient) > 0])
    rng = stream(cohort.seed, "races").numpy
    shares = np.array([share for _, share in RACES])
    drawn = rng.choice(len(RACES), len(first), p=shares / shares.sum())
    race = np.array([name for name, _ in RACES], dtype=object)[drawn]
    hispanic = np.array(["Hispanic" in r and "non-" not in r for r in race])
    return pd.DataFrame(
        {
            "PATIENT": [p.split("/")[2] for p in paths[first]],
            "GENDER": np.where(cohort.male[first], "Male", "Female"),
            "AGE_AT_CXR": cohort.age[first],
            "PRIMARY_RACE": race,
            "ETHNICITY": np.where(hispanic, "Hispanic/Latino", "Non-Hispanic/Non-Latino"),
        }
    )
