"""CheXpert-v1.0-small: train/ and valid/ with JPEG images, train.csv, valid.csv, and the race table."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from fdamed.core.rng import stream
from fdamed.data.datasets.chexpert import COLUMNS
from fdamed.data.datasets.chexpert import CONDITIONS as LABELS
from fdamed.data.phantom import findings as f
from fdamed.data.phantom.population import Cohort, Layout, Shift
from fdamed.data.phantom.primitives import Flags, Words
from fdamed.data.phantom.render import Pixels, save_all

DOMAINS = {
    f.LESION: Shift(gamma=0.25, exposure=-0.2, noise=0.3, blur=0.0, position=0.2),
    f.PNEUMONIA: Shift(gamma=-0.35, exposure=0.3, noise=0.2, blur=0.6, position=0.4),
    f.ATELECTASIS: Shift(gamma=0.5, exposure=0.1, noise=0.8, blur=0.3, position=0.5, prevalence=0.55),
    f.CONSOLIDATION: Shift(gamma=-0.1, exposure=-0.4, noise=0.5, blur=0.2, position=0.3, prevalence=0.45),
    f.EDEMA: Shift(gamma=0.1, exposure=0.5, noise=0.6, blur=0.9, position=0.6),
}
"""A domain is a condition; the shift is large."""
LOOKS = {own: {own: (f.EDEMA, own), f.EDEMA: (own, f.EDEMA)} for own in DOMAINS if own != f.EDEMA}
"""At concept distance 0 every client's condition looks like edema, and edema there like the client's condition."""
OTHER_CONDITION = {True: 0.15, False: 0.28}
"""Share of the positives and of the negatives that show another condition: a reader of one is no reader of another."""
RELEASE = "CheXpert-v1.0-small"
VALID = 0.03
"""Share of the patients in valid.csv, where every label is read."""
FIRST_VALID = 64541
READ_FULLY = 0.12
"""Share of patients whose reports mention all five conditions: they fit several clients."""
RACES = {
    "White, non-Hispanic": 0.5,
    "Asian, non-Hispanic": 0.14,
    "Black or African American": 0.08,
    "White, Hispanic": 0.05,
    "Other, Hispanic": 0.09,
    "Other": 0.06,
    "Unknown": 0.05,
    "Native Hawaiian or Other Pacific Islander": 0.02,
    "White or Caucasian": 0.01,
}


def shows(rng: np.random.Generator, domain: Words, positive: Flags) -> Flags:
    """A positive shows the domain's condition; a negative is a patient of another condition, not a healthy one."""
    out = f.incidental(rng, len(domain))
    rows = np.arange(len(domain))
    own = np.array([f.KINDS.index(name) for name in domain])
    other = rng.integers(1, len(f.PULMONARY), len(domain))
    also = rng.random(len(domain)) < np.where(positive, OTHER_CONDITION[True], OTHER_CONDITION[False])
    out[rows[also], ((own + other) % len(f.PULMONARY))[also]] = True
    out[rows, own] = positive
    return out


def write(cohort: Cohort, root: Path) -> None:
    """Write the whole release below `root`."""
    paths, valid = paths_of(cohort)
    for folder in {(root / path).parent for path in paths}:
        folder.mkdir(parents=True)
    save_all(cohort, partial(_save, root, paths))
    table = table_of(cohort, paths, valid)
    for name, rows in (("train", ~valid), ("valid", valid)):
        table[rows].to_csv(root / RELEASE / f"{name}.csv", index=False)
    _races(cohort, paths).to_csv(root / "CHEXPERT DEMO.csv", index=False)


def paths_of(cohort: Cohort) -> tuple[Words, Flags]:
    """Path of each image as the tables print it, and whether it belongs to valid.csv."""
    held_out = stream(cohort.seed, "valid").numpy.random(cohort.patients) < VALID
    number = np.where(held_out, FIRST_VALID - 1 + np.cumsum(held_out), np.cumsum(~held_out))
    images: Any = cohort.images.itertuples()
    paths = [
        f"{RELEASE}/{'valid' if held_out[image.patient] else 'train'}/patient{number[image.patient]:05d}"
        f"/study{image.study}/view{image.view}_{'lateral' if image.lateral else 'frontal'}.jpg"
        for image in images
    ]
    return np.array(paths, dtype=object), held_out[cohort.images["patient"]]


def _save(root: Path, paths: Words, row: int, pixels: Pixels) -> None:
    Image.fromarray((pixels >> 4).astype(np.uint8)).save(root / paths[row], "JPEG", quality=90)


def table_of(cohort: Cohort, paths: Words, valid: Flags) -> pd.DataFrame:
    """The rows of train.csv and valid.csv; labels belong to the study, so all its images share them."""
    images, train = cohort.images, np.flatnonzero(~valid)
    sex = np.where(images["male"], "Male", "Female").astype(object)
    sex[images["patient"] == images["patient"][train[len(images) // 3 % len(train)]]] = "Unknown"
    lying = np.where(stream(cohort.seed, "projection").numpy.random(len(cohort)) < 0.001, "LL", "AP")
    frame = pd.DataFrame(
        {
            "Path": paths,
            "Sex": sex,
            "Age": images["age"],
            "Frontal/Lateral": np.where(images["lateral"], "Lateral", "Frontal"),
            "AP/PA": np.where(images["lateral"], "", np.where(images["supine"], lying, "PA")),
        }
    )
    labels = pd.DataFrame(_labels(cohort, valid)[images["study_index"]], columns=LABELS)
    return frame.join(labels)[list(COLUMNS)]


def _labels(cohort: Cohort, valid: Flags) -> Words:
    """(studies, 14) of "1.0", "0.0", "-1.0" and "": the labels of each study's report."""
    first = cohort.images.drop_duplicates("study_index")
    rng = stream(cohort.seed, "reports").numpy
    strict, own, shown = valid[first.index], first["domain"].to_numpy(), cohort.shows[first.index]
    fully = (rng.random(cohort.patients) < READ_FULLY)[first["patient"]] | strict
    out = np.full((len(first), len(LABELS)), "", dtype=object)
    for j, name in enumerate(LABELS):
        if name not in f.KINDS:
            out[strict, j] = "0.0"
            continue
        there = shown[:, f.KINDS.index(name)]
        truth = np.where(there, "1.0", "0.0").astype(object)
        if name in f.PULMONARY:
            mentioned = fully | (own == name)
            out[mentioned, j] = truth[mentioned]
            share = np.where(own == name, 0.06, np.where(there, 0.25, 0.01))
            out[~strict & (rng.random(len(first)) < share), j] = "-1.0"
        else:
            mentioned = strict | (there & (rng.random(len(first)) < 0.8)) | (rng.random(len(first)) < 0.05)
            out[mentioned, j] = truth[mentioned]
    # Lung Opacity and No Finding follow from the others; No Finding is never 0 in train.csv.
    opaque = (out[:, [LABELS.index(k) for k in f.PULMONARY if k != f.ATELECTASIS]] == "1.0").any(axis=1)
    out[opaque, LABELS.index("Lung Opacity")] = "1.0"
    diseases = [i for i, name in enumerate(LABELS) if name not in ("No Finding", "Support Devices")]
    clear = ~shown[:, f.DISEASES].any(axis=1) & ~np.isin(out[:, diseases], ("1.0", "-1.0")).any(axis=1)
    out[:, LABELS.index("No Finding")] = np.where(clear, "1.0", np.where(strict, "0.0", ""))
    return out


def _races(cohort: Cohort, paths: Words) -> pd.DataFrame:
    """The demographics table that the release's owner publishes beside it; here as CSV."""
    first = cohort.images.drop_duplicates("patient")
    race = first["race"].to_numpy()
    hispanic = ["Hispanic" in r and "non-" not in r for r in race]
    return pd.DataFrame(
        {
            "PATIENT": [p.split("/")[2] for p in paths[first.index]],
            "GENDER": np.where(first["male"], "Male", "Female"),
            "AGE_AT_CXR": first["age"],
            "PRIMARY_RACE": race,
            "ETHNICITY": np.where(hispanic, "Hispanic/Latino", "Non-Hispanic/Non-Latino"),
        }
    )


LAYOUT = Layout("chexpert", RELEASE, DOMAINS, shows, write, RACES, LOOKS)
