"""Views of the cache: slices where possible, labels only where allowed, nested balanced parts."""

from __future__ import annotations

import errno
import itertools
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fdamed.core.errors import FdamedError
from fdamed.data.loader import Unlabeled, balanced_part, load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 8, 8), dtype=np.uint8)
    order = pd.DataFrame(
        {
            "y": np.tile([0, 1], 20).astype(np.int8),
            "split": ["train"] * 16 + ["adapt"] * 12 + ["val"] * 4 + ["test"] * 8,
            "sex": ["F", "M", None, "M"] * 10,
            "age": [0.0, 9.9, 10.0, 90.0, float("nan")] * 8,
            "view": ["frontal", "lateral"] * 20,
            "race": ["White", "Asian", "Other", None] * 10,
            "crc32": [zlib.crc32(i.tobytes()) for i in images],
        }
    )
    np.save(tmp_path / "images.npy", images)
    order.to_parquet(tmp_path / "order.parquet")
    return tmp_path


def test_neighboring_splits_are_a_view_and_not_a_copy(folder: Path) -> None:
    data = load(folder, ("train", "adapt"))
    assert len(data) == 28
    assert isinstance(data.images, np.memmap)
    assert np.array_equal(data.images, np.load(folder / "images.npy")[:28])
    assert data.y.dtype == np.int64
    assert data.y[:4].tolist() == [0, 1, 0, 1]


def test_splits_apart_are_put_together_in_the_order_of_the_cache(folder: Path) -> None:
    data = load(folder, ("test", "train"))
    whole = np.load(folder / "images.npy")
    assert np.array_equal(data.images, np.concatenate([whole[:16], whole[32:]]))
    assert np.array_equal(data.batch(np.array([16, 0])), whole[[32, 0]])


def test_without_labels_there_is_nothing_to_peek_at(folder: Path) -> None:
    hidden = load(folder, ("train",), heads=("sex",)).without_labels()
    assert isinstance(hidden, Unlabeled)
    assert not hasattr(hidden, "y")
    assert not hasattr(hidden, "auxiliary")
    assert len(hidden) == 16
    assert hidden.batch(np.array([3])).shape == (1, 8, 8)


def test_auxiliary_classes_are_the_designs_and_missing_ones_are_minus_one(folder: Path) -> None:
    data = load(folder, ("train",), heads=("sex", "age", "view", "race"), races=("Asian", "White"))
    assert data.auxiliary["sex"][:4].tolist() == [0, 1, -1, 1]
    assert data.auxiliary["age"][:5].tolist() == [0, 0, 1, 9, -1]
    assert data.auxiliary["view"][:2].tolist() == [0, 1]
    assert data.auxiliary["race"][:4].tolist() == [1, 0, -1, -1]


def test_a_part_is_balanced_seeded_and_contained_in_every_larger_one() -> None:
    y = np.array([0] * 50 + [1] * 10)
    parts = [set(balanced_part(y, n, seed=3).tolist()) for n in range(1, 61)]
    assert all(a < b for a, b in itertools.pairwise(parts))
    assert [int(y[list(p)].sum()) for p in parts[:20]] == [n // 2 for n in range(1, 21)]
    assert len(parts[-1]) == 60
    assert set(balanced_part(y, 10, seed=4).tolist()) != parts[9]
    assert balanced_part(y, 10, seed=3).tolist() == sorted(parts[9])


def test_the_limit_of_load_takes_images_and_labels_together(folder: Path) -> None:
    whole, part = load(folder, ("adapt",)), load(folder, ("adapt",), limit=6, seed=1)
    assert sorted(part.y.tolist()) == [0, 0, 0, 1, 1, 1]
    places = [int(np.flatnonzero((whole.images == i).all(axis=(1, 2)))[0]) for i in part.images]
    assert whole.y[places].tolist() == part.y.tolist()


def test_a_file_for_which_there_is_no_memory_is_not_called_damaged(folder: Path, monkeypatch) -> None:
    def starved(*given: object, **options: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(np, "load", starved)
    with pytest.raises(MemoryError, match="Cannot allocate memory"):
        load(folder, ("train",))


def test_one_flipped_bit_a_cut_and_a_foreign_file_are_found(folder: Path) -> None:
    raw = bytearray((folder / "images.npy").read_bytes())
    raw[128 + 64 * 5 + 3] ^= 1
    (folder / "images.npy").write_bytes(raw)
    with pytest.raises(FdamedError, match="1 images in the cache are not what was written"):
        load(folder, ("train",))
    assert len(load(folder, ("test",))) == 8
    (folder / "images.npy").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(FdamedError, match="cut short"):
        load(folder, ("train",))
    np.save(folder / "images.npy", np.zeros((39, 8, 8), np.uint8))
    with pytest.raises(FdamedError, match="do not belong together"):
        load(folder, ("train",))
    (folder / "images.npy").unlink()
    with pytest.raises(FdamedError, match="is missing"):
        load(folder, ("train",))


def test_the_loader_is_light() -> None:
    code = "import sys, fdamed.data.loader; sys.exit(any(m in sys.modules for m in ('torch', 'monai', 'pydicom')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
