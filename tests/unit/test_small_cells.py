"""Small groups: none is shown, and none can be computed from what is shown."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from fdamed.core.disclosure import released_counts
from fdamed.data.loader import classes_of
from fdamed.evaluation.audit import by_group
from fdamed.evaluation.protocol import sizes
from fdamed.evaluation.subgroups import banded, groups

SMALLEST = 11


def test_a_public_set_with_several_classes_hides_its_small_splits_too() -> None:
    content = {"images": {"train": 90, "val": 4}, "patients": {"train": 90, "val": 4}, "positives": None}
    text = json.dumps(sizes({"clients": {"A": released_counts(content, SMALLEST)}}, SMALLEST).values.tolist())
    assert "<11" in text and "94" not in text and " 4," not in text


def test_no_small_group_is_judged_and_none_follows_from_the_numbers_of_the_others() -> None:
    """20 cohorts of up to 600 images, every pair of attributes."""
    rng = np.random.default_rng(2)
    tables = 0
    for _ in range(20):
        n = int(rng.integers(40, 600))
        frame = pd.DataFrame(
            {
                "patient": [f"p{i}" for i in range(n)],
                "y": (rng.random(n) < rng.uniform(0.05, 0.95)).astype(int),
                "sex": rng.choice(["F", "M", None], n, p=[0.55, 0.4, 0.05]),
                "age": rng.integers(18, 91, n).astype(float),
                "race": rng.choice(["White", "Black", "Asian", "Other"], n, p=[0.7, 0.2, 0.08, 0.02]),
                "view": rng.choice(["frontal", "lateral"], n, p=[0.9, 0.1]),
            }
        )
        words = banded(frame)
        found: dict[tuple[str, ...], list[int | None]] = {}
        for group in groups(frame, SMALLEST):
            y = frame["y"].to_numpy()[group.rows]
            assert min(y.sum(), len(y) - y.sum()) >= SMALLEST
            found.setdefault(group.by, []).append(group.n)
        for by, numbers in found.items():
            tables += len(numbers)
            cells = words.groupby(list(by), observed=True).size()
            if None not in numbers:  # then the table is whole, and the rest of all images is no small group either
                assert len(numbers) == len(cells) and cells.min() >= SMALLEST
                assert n - sum(c or 0 for c in numbers) == 0 or n - sum(c or 0 for c in numbers) >= SMALLEST
    assert tables > 400


def fits(shown: float, parts: int, decimals: int) -> bool:
    """Whether some whole number of so many parts rounds to this."""
    return abs(round(shown * parts) / parts - shown) <= 0.5 * 10.0**-decimals + 1e-9


@pytest.mark.parametrize("smallest", [5, SMALLEST])
def test_no_small_group_follows_from_the_scores_of_the_others(smallest: int) -> None:
    """Who knows all positives and negatives tries every size of the hidden group: none of them may be ruled out."""
    rng = np.random.default_rng(3)
    seeds, names = 2, [f"run{i}" for i in range(6)]
    runs = {name: {s: seeds * i + s for s in range(seeds)} for i, name in enumerate(names)}
    tried = 0
    for _ in range(30):
        few, n = int(rng.integers(1, smallest)), int(rng.integers(4 * smallest, 180))
        y = rng.integers(0, 2, n)
        sex = np.where(np.arange(n) < few, "M", "F")
        frame = pd.DataFrame({"patient": np.arange(n).astype(str), "y": y, "sex": sex})
        probabilities = np.clip(0.3 * y + rng.normal(0.35, 0.25, (len(names) * seeds, n)), 0, 1)
        entries, gaps = by_group(frame, probabilities, runs, names[0], smallest)
        assert gaps == []
        if not entries:
            continue
        (women,) = entries
        assert women["are"] == ("F",) and women["n"] is None
        shown = {
            score: [run[score]["value"] for run in women["runs"].values() if score in run]
            + [run["gains"][score]["value"] for run in women["runs"].values() if score in run["gains"]]
            for score in ("sensitivity", "false_alarms", "auc")
        }
        decimals = max(len(str(v).split(".")[1]) for v in shown["auc"])
        positives, negatives = int(y.sum()), int(n - y.sum())
        for p in range(max(smallest, positives - smallest + 1), positives + 1):
            for q in range(max(smallest, negatives - smallest + 1), negatives + 1):
                assert all(fits(v, seeds * p, 4) for v in shown["sensitivity"]), f"{positives - p} positives or more"
                assert all(fits(v, seeds * q, 4) for v in shown["false_alarms"]), f"{negatives - q} negatives or more"
                assert all(fits(v, 2 * seeds * p * q, decimals) for v in shown["auc"])
                tried += 1
    assert tried > 300


@pytest.mark.parametrize("age", [90.0, 93.0, 104.0])
def test_nobody_is_older_than_ninety_in_what_is_shown_or_learned(age: float) -> None:
    frame = pd.DataFrame({"age": [90.0, age]})
    assert banded(frame)["age"].nunique() == 1
    assert len(set(classes_of({"age": frame["age"].to_numpy()}, "age").tolist())) == 1
