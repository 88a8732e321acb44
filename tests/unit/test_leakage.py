"""The leakage check: patients in two parts or two clients."""

from __future__ import annotations

import pandas as pd
import pytest

from fdamed.core.errors import FdamedError
from fdamed.data.splitting.leakage import Leakage, check_manifests


def manifest(*rows: tuple[str, str, str]) -> pd.DataFrame:
    """(image, patient, split)."""
    frame = pd.DataFrame(rows, columns=["image", "patient", "split"])
    return frame.assign(y=1)


GOOD = {
    "A": manifest(("1", "p", "train"), ("2", "p", "train"), ("3", "q", "test")),
    "B": manifest(("4", "r", "adapt"), ("5", "s", "val")),
}


def test_clean_manifests_pass_with_three_zeros() -> None:
    assert check_manifests(GOOD) == Leakage(0, 0, 0)


@pytest.mark.parametrize(
    ("client", "row", "message"),
    [
        ("A", ("6", "p", "test"), "1 patients are in more than one part (at A)"),
        ("A", ("6", "p", "adapt"), "more than one part"),
        ("B", ("6", "p", "train"), "1 patients are at more than one hospital"),
        ("B", ("3", "t", "train"), "images are in more than one part, under different patients"),
        ("A", ("1", "p", "train"), "listed twice"),
        ("A", ("6", "", "train"), "rows without patient"),
        ("A", ("6", "t", "training"), "split holds values outside"),
    ],
)
def test_a_hand_made_leak_stops_the_run(client: str, row: tuple[str, str, str], message: str) -> None:
    leaking = {**GOOD, client: pd.concat([GOOD[client], manifest(row)], ignore_index=True)}
    with pytest.raises(FdamedError) as error:
        check_manifests(leaking)
    assert message in error.value.what


def test_small_numbers_of_leaking_patients_are_only_a_range() -> None:
    leaking = {**GOOD, "A": pd.concat([GOOD["A"], manifest(("6", "p", "test"))], ignore_index=True)}
    with pytest.raises(FdamedError) as error:
        check_manifests(leaking, smallest=11)
    assert error.value.what == "1 to 10 patients are in more than one part (at A)"


def test_a_manifest_without_the_columns_or_with_a_strange_class_is_refused() -> None:
    with pytest.raises(FdamedError, match="missing column patient"):
        check_manifests({"A": GOOD["A"].drop(columns="patient")})
    with pytest.raises(FdamedError, match="y holds"):
        check_manifests({"A": GOOD["A"].assign(y=2)})


def test_the_reference_rule_counts_its_leaks_instead() -> None:
    leaking = {
        "A": manifest(("1", "p", "train"), ("2", "p", "test"), ("3", "q", "test")),
        "B": manifest(("1", "p", "test"), ("5", "q", "test"), ("6", "s", "val")),
    }
    assert check_manifests(leaking, "reference") == Leakage(1, 2, 1)
