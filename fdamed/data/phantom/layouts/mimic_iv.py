"""hosp/patients.csv.gz and hosp/admissions.csv.gz of MIMIC-IV for a phantom cohort."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from fdamed.core.rng import stream
from fdamed.data.phantom.layouts import columns
from fdamed.data.phantom.population import repeated, words
from fdamed.data.phantom.primitives import Flags, Numbers, Words

RACES: dict[str, dict[str, float]] = {
    str(group): dict(zip(rows["race"], rows["share"], strict=True))
    for group, rows in pd.read_csv(Path(__file__).with_name("mimic_iv_races.csv")).groupby("group", sort=False)
}
"""Race of the split -> races as admissions write them, with their shares."""
NO_RACE = ("OTHER", "UNKNOWN", "UNABLE TO OBTAIN", "PATIENT DECLINED TO ANSWER", "MULTIPLE RACE/ETHNICITY")
CONTRADICTS = 0.04
"""Share of patients with several admissions whose admissions name two races."""
UNSTATED = 0.05
"""Share of patients without a race in any admission."""
NEVER_ADMITTED = 0.03
KINDS = ("EW EMER.", "URGENT", "OBSERVATION ADMIT", "ELECTIVE", "SURGICAL SAME DAY ADMISSION")


def patients(seed: int, subject: Numbers, male: Flags, age: Numbers, year: Numbers) -> pd.DataFrame:
    rng = stream(seed, "mimic_iv", "patients").numpy
    back = rng.integers(0, 3, len(subject))
    start = 2008 + 3 * rng.integers(0, 4, len(subject))
    died = rng.random(len(subject)) < 0.1
    return pd.DataFrame(
        {
            "subject_id": subject,
            "gender": np.where(male, "M", "F"),
            "anchor_age": np.where(age >= 90, 91, np.maximum(age - back, 18)),
            "anchor_year": np.where(age >= 90, year, year - np.minimum(back, age - 18)),
            "anchor_year_group": [f"{s} - {s + 2}" for s in start],
            "dod": [f"{y + 6}-03-01" if d else "" for y, d in zip(year, died, strict=True)],
        }
    )


def admissions(seed: int, subject: Numbers, race: Words, year: Numbers) -> pd.DataFrame:
    """One row per admission."""
    rng = stream(seed, "mimic_iv", "admissions").numpy
    people = len(subject)
    count = np.where(rng.random(people) < NEVER_ADMITTED, 0, np.minimum(rng.geometric(0.5, people), 5))
    owner, number = repeated(count)
    stated = _races(rng, race, owner, number)
    dates = list(zip(year[owner], 1 + number, 1 + rng.integers(0, 20, len(owner)), strict=True))
    admitted = [f"{y}-{m:02d}-{d:02d} 10:00:00" for y, m, d in dates]
    left = [f"{y}-{m:02d}-{d + 5:02d} 15:30:00" for y, m, d in dates]
    emergency = rng.random(len(owner)) < 0.6
    return pd.DataFrame(
        columns("admissions")
        | {
            "subject_id": subject[owner],
            "hadm_id": 20_000_000 + rng.choice(9_999_999, len(owner), replace=False),
            "admittime": admitted,
            "dischtime": left,
            "admission_type": np.array(KINDS, dtype=object)[rng.integers(0, len(KINDS), len(owner))],
            "admit_provider_id": [f"P{n:05d}" for n in rng.integers(0, 100_000, len(owner))],
            "admission_location": np.where(emergency, "EMERGENCY ROOM", "PHYSICIAN REFERRAL"),
            "discharge_location": np.where(rng.random(len(owner)) < 0.7, "HOME", "SKILLED NURSING FACILITY"),
            "insurance": np.where(rng.random(len(owner)) < 0.5, "Medicare", "Other"),
            "language": np.where(rng.random(len(owner)) < 0.9, "ENGLISH", "?"),
            "marital_status": np.where(rng.random(len(owner)) < 0.5, "MARRIED", "SINGLE"),
            "race": stated,
        }
    )


def _races(rng: np.random.Generator, race: Words, owner: Numbers, number: Numbers) -> Words:
    """The race of each admission: mostly the patient's own, sometimes none, rarely another one."""
    people = len(race)
    own = np.full(people, "", dtype=object)
    for name, shares in RACES.items():
        rows = np.flatnonzero(race == name)
        own[rows] = words(rng, shares, len(rows))
    unstated = rng.random(people) < UNSTATED
    own[unstated] = np.array(NO_RACE, dtype=object)[rng.integers(0, len(NO_RACE), int(unstated.sum()))]
    out = own[owner]
    several = np.flatnonzero(np.bincount(owner, minlength=people) > 1)
    contradicted = several[rng.random(len(several)) < CONTRADICTS]
    second = np.isin(owner, contradicted) & (number == 1)
    for row in np.flatnonzero(second):
        others = [next(iter(shares)) for name, shares in RACES.items() if name != race[owner[row]]]
        out[row] = others[int(owner[row]) % len(others)]
    out[(number > 0) & ~second & (rng.random(len(owner)) < 0.06)] = "UNKNOWN"
    return out
