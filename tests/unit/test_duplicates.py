"""Near-duplicates: copies are found across groups, other images of the same patient are not."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

from fdamed.data.duplicates import block_mean, near_duplicates, signatures

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "nih" / "images"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the NIH images are not on this machine")


def jpeg(image: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer))


COPIES: dict[str, Callable[[NDArray[np.uint8]], NDArray[np.uint8]]] = {
    "same": lambda a: a,
    "jpeg": lambda a: jpeg(a, 50),
    "contrast": lambda a: np.clip((a.astype(float) - 128) * 1.3 + 140, 0, 255).astype(np.uint8),
    "gamma": lambda a: (255 * (a / 255) ** 0.7).astype(np.uint8),
    "shift": lambda a: np.roll(a, (1, 1), (0, 1)),
    "noise": lambda a: np.clip(a + np.random.default_rng(0).normal(0, 6, a.shape), 0, 255).astype(np.uint8),
}


def random_images(count: int, size: int = 96) -> NDArray[np.uint8]:
    fields = np.random.default_rng(1).standard_normal((count, size, size))
    smooth = gaussian_filter(fields, (0, 3, 3)) + gaussian_filter(fields, (0, 12, 12)) * 4
    smooth -= smooth.min(axis=(1, 2), keepdims=True)
    return (255 * smooth / smooth.max(axis=(1, 2), keepdims=True)).astype(np.uint8)


def real_images(count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    files = sorted(REAL.iterdir())[:count]
    images = np.stack([np.asarray(Image.open(f).convert("L").resize((128, 128))) for f in files])
    return images, np.array([int(f.name[:8]) for f in files])


def test_area_averages_keep_the_mean_and_need_no_multiple() -> None:
    image = np.arange(36, dtype=np.uint8).reshape(1, 6, 6)
    assert block_mean(image, 3)[0, 0, 0] == (0 + 1 + 6 + 7) / 4
    assert block_mean(image, 4).mean() == pytest.approx(image.mean())


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_in_another_group_is_found_and_nothing_else(name: str) -> None:
    images = random_images(60)
    copies = np.stack([COPIES[name](i) for i in images[:20]])
    groups = np.array(["train"] * 60 + ["test"] * 20)
    pairs = near_duplicates(np.concatenate([images, copies]), groups)
    assert [(p.first, p.second) for p in pairs] == [(i, 60 + i) for i in range(20)]
    assert all(0.9 < p.likeness <= 1.001 for p in pairs)


def test_copies_within_one_group_are_nobodys_business() -> None:
    images = random_images(10)
    assert near_duplicates(np.concatenate([images, images]), np.array(["train"] * 20)) == []


def test_blocks_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.concatenate([random_images(30), random_images(30)])
    groups = np.repeat(["a", "b"], 30)
    whole = near_duplicates(images, groups)
    monkeypatch.setattr("fdamed.data.duplicates.BLOCK", 7)
    assert [(p.first, p.second) for p in near_duplicates(images, groups)] == [(p.first, p.second) for p in whole]
    assert len(whole) == 30


def test_hashes_do_not_depend_on_brightness() -> None:
    images = random_images(5) // 2
    assert np.array_equal(signatures(images)[0], signatures(images + np.uint8(40))[0])


@needs_real
@pytest.mark.parametrize("name", COPIES)
def test_copies_of_real_radiographs_are_found(name: str) -> None:
    images, _ = real_images(150)
    copies = np.stack([COPIES[name](i) for i in images])
    pairs = near_duplicates(np.concatenate([images, copies]), np.repeat(["a", "b"], 150))
    assert [(p.first, p.second) for p in pairs] == [(i, 150 + i) for i in range(150)]


@needs_real
def test_among_real_radiographs_other_images_of_a_patient_are_not_taken_for_copies() -> None:
    images, patients = real_images(1500)
    assert len(np.unique(patients)) < 600
    assert near_duplicates(images, np.arange(1500)) == []
