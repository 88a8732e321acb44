"""PadChest: labels in printed lists, ages from birth years, 16-bit PNGs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fdamed.core.errors import FdamedError
from fdamed.data.datasets.padchest import Padchest, names
from fdamed.data.ingestion import read_index, read_rows
from fdamed.data.row_reader import Rejects
from tests.support.dicom_files import read, thorax
from tests.support.raw_trees import GOLDEN, PADCHEST_IMAGES, as_text, padchest_tree


def data(root: Path, **keys: object) -> Padchest:
    return Padchest.model_validate({"layout": "padchest", "root": str(root), **keys})


def changed(cell: int, value: str) -> list[tuple[str, ...]]:
    """The six rows with one cell of the first replaced."""
    first = list(PADCHEST_IMAGES[0])
    first[cell] = value
    return [tuple(first), *PADCHEST_IMAGES[1:]]


def test_six_rows_become_the_golden_index(tmp_path: Path) -> None:
    rejects = Rejects()
    frame = read_index(data(padchest_tree(tmp_path)), "golden", rejects)
    assert as_text(frame) == (GOLDEN / "padchest_index.csv").read_text()
    assert rejects.lines == []


def test_all_images_in_one_folder_are_found_too(tmp_path: Path) -> None:
    frame = read_index(data(padchest_tree(tmp_path, flat=True)), "s", Rejects())
    assert frame["image"].tolist() == [row[0] for row in PADCHEST_IMAGES]


def test_a_sixteen_bit_png_keeps_its_gray_values(tmp_path: Path) -> None:
    root = padchest_tree(tmp_path)
    pixels = thorax(bits=14).astype(float)
    low, high = np.percentile(pixels, (0.1, 99.9))
    expected = np.clip((pixels - low) / (high - low), 0, 1)
    np.testing.assert_allclose(read(root / "0/1_a.png"), expected, atol=1e-6)


def test_only_the_physicians_labels_on_request(tmp_path: Path) -> None:
    rejects = Rejects()
    frame = read_rows(data(padchest_tree(tmp_path), physicians_only=True), "s", rejects)
    assert frame["label.No Finding"].tolist() == [1, 1]
    assert rejects.counts() == {"OTHER_LABELER": 4} and rejects.faults() == 0


def test_labels_beside_unchanged_are_unknown_and_not_zero(tmp_path: Path) -> None:
    frame = read_rows(data(padchest_tree(tmp_path)), "s", Rejects())
    assert frame["label.cardiomegaly"].tolist() == [0, 0, 0, 1, 1, 0]
    assert frame["label.pneumonia"].fillna(-9).tolist() == [0, 0, 0, 0, -9, 1]


@pytest.mark.parametrize(
    ("cell", "value", "reason"),
    [
        (0, "../1_a.png", "PATH_OUTSIDE_ROOT"),
        (2, "2014-09-15", "BAD_DATE"),
        (4, "2020.0", "BAD_AGE"),
        (4, "old", "BAD_AGE"),
        (5, "Blue", "BAD_SEX"),
        (6, "EXCLUDE", "EXCLUDED"),
        (9, "['exclude']", "EXCLUDED"),
        (9, "", "NO_LABELS"),
        (9, "nan", "NO_LABELS"),
    ],
)
def test_a_row_that_cannot_be_used_is_rejected_with_its_reason(
    tmp_path: Path, cell: int, value: str, reason: str
) -> None:
    root = padchest_tree(tmp_path / "a")
    table = next(root.glob("*.csv"))
    (tmp_path / "b").mkdir()
    lines = next(padchest_tree(tmp_path / "c" / "d", changed(cell, value)).glob("*.csv")).read_text()
    table.write_text(lines)
    rejects = Rejects()
    assert len(read_rows(data(root), "s", rejects)) == 5
    assert [line[1:3] for line in rejects.lines] == [("2", reason)]


def test_a_printed_list_is_read_name_by_name() -> None:
    assert names("['Pleural Effusion', ' normal', '']") == ["pleural effusion", "normal"]
    assert names("") == names("nan") == names("[]") == []


def test_no_table_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FdamedError, match="PADCHEST_chest_x_ray"):
        read_rows(data(tmp_path), "s", Rejects())
