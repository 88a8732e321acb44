"""Public data sets are read from their released files; a missing file is an error with a remedy."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from fdamed.config.datasets import Domain
from fdamed.core.errors import FdamedError
from fdamed.data.benchmark.samples import Samples, fitted
from fdamed.data.benchmark.sources import read
from tests.support.idx_files import write_idx

FASHION = Path("/usr/share/datasets/fashion-mnist")


def test_idx_files_are_read_plain_and_gzipped(tmp_path: Path) -> None:
    write_idx(tmp_path, train=30, test=20)
    found = read(Domain(kind="idx", root=str(tmp_path)), "here")
    assert found.x.shape == (50, 28, 28) and found.x.dtype == np.uint8
    assert found.y[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert found.test.sum() == 20 and not found.test[:30].any()
    assert (found.x[3, 6:10] == 220).all()


@pytest.mark.skipif(not FASHION.is_dir(), reason="the package dataset-fashion-mnist is not installed")
def test_fashion_mnist_has_7000_images_of_each_class() -> None:
    found = read(Domain(kind="idx", root=str(FASHION)), "here")
    assert np.bincount(found.y).tolist() == [7000] * 10
    assert found.test.sum() == 10_000
    assert found.x.mean() == pytest.approx(72.97, abs=0.05)  # published: 0.2860 of 255 on the training part


def test_a_missing_set_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(FdamedError, match=r"train-images") as error:
        read(Domain(kind="idx", root=str(tmp_path / "nowhere")), "here")
    assert "dataset-fashion-mnist" in error.value.fix


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    write_idx(tmp_path, train=30, test=20)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-3])
    with pytest.raises(FdamedError, match="cannot reshape"):
        read(Domain(kind="idx", root=str(tmp_path)), "here")


def test_feature_vectors_come_as_npz(tmp_path: Path) -> None:
    x = np.arange(12.0).reshape(4, 3)
    np.savez(tmp_path / "set.npz", x=x, y=[0, 1, 0, 1], x_test=x[:2], y_test=[1, 0])
    found = read(Domain(kind="npz", root=str(tmp_path / "set.npz")), "here")
    assert found.x.dtype == np.float32 and found.x.shape == (6, 3)
    assert found.test.tolist() == [False] * 4 + [True] * 2


def test_usps_is_one_hdf5_file_with_gray_values_from_0_to_1(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "usps.h5", "w") as file:
        for part, n in (("train", 3), ("test", 2)):
            file[f"{part}/data"] = np.full((n, 256), 0.5 if part == "train" else 1.0, dtype=np.float32)
            file[f"{part}/target"] = np.arange(n)
    found = read(Domain(kind="usps", root=str(tmp_path / "usps.h5")), "here")
    assert found.x.shape == (5, 16, 16) and found.x[:, 0, 0].tolist() == [128, 128, 128, 255, 255]
    assert found.y.tolist() == [0, 1, 2, 0, 1] and found.test.tolist() == [False] * 3 + [True] * 2
    (tmp_path / "usps.h5").write_bytes(b"not HDF5")
    with pytest.raises(FdamedError, match="no set of kind `usps`"):
        read(Domain(kind="usps", root=str(tmp_path / "usps.h5")), "here")


def test_the_digits_of_scikit_learn_need_no_file() -> None:
    found = read(Domain(kind="digits"), "here")
    assert found.x.shape == (1797, 8, 8) and found.x.max() == 255 and found.test.sum() == 359


def test_cifar10_is_read_channel_by_channel(tmp_path: Path) -> None:
    for i, name in enumerate([*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]):
        rows = np.zeros((2, 3073), dtype=np.uint8)
        rows[:, 0] = i
        rows[:, 1:1025] = 7  # red
        rows.tofile(tmp_path / name)
    found = read(Domain(kind="cifar10", root=str(tmp_path)), "here")
    assert found.x.shape == (12, 32, 32, 3)
    assert found.x[0, 0, 0].tolist() == [7, 0, 0] and found.y[-1] == 5


def test_color_goes_with_the_label_as_often_as_the_correlation_says(tmp_path: Path) -> None:
    write_idx(tmp_path, train=4000, test=1000)
    found = read(Domain(kind="colored", root=str(tmp_path), correlation=0.8), "here")
    red = found.x[..., 0].any(axis=(1, 2))
    assert (
        found.x.shape == (5000, 14, 14, 3) and not (found.x[..., 0].astype(bool) & found.x[..., 1].astype(bool)).any()
    )
    assert (red == (found.y == 1)).mean() == pytest.approx(0.9, abs=0.02)
    truth = np.arange(4000) % 10 >= 5
    assert ((found.y[:4000] == 1) == truth).mean() == pytest.approx(0.75, abs=0.03)


def test_images_are_brought_to_the_side_and_channels_of_the_model() -> None:
    gray = Samples(np.full((3, 8, 8), 90, np.uint8), np.zeros(3, np.int64), np.zeros(3, bool))
    assert (fitted(gray, 32, 3).x == 90).all() and fitted(gray, 32, 3).x.shape == (3, 32, 32, 3)
    color = Samples(np.tile(np.array([10, 20, 30], np.uint8), (2, 4, 4, 1)), np.zeros(2, np.int64), np.zeros(2, bool))
    assert fitted(color, 4, 1).x[0, 0, 0] == round(0.299 * 10 + 0.587 * 20 + 0.114 * 30)


def test_images_in_class_folders_are_read_at_the_side_that_is_asked_for(tmp_path: Path) -> None:
    from PIL import Image

    for label, shade in (("cat", 10), ("dog", 200)):
        (tmp_path / label).mkdir()
        for i in range(6):
            Image.new("RGB", (40, 30), (shade, shade, shade)).save(tmp_path / label / f"{i}.png")
    found = read(Domain(kind="folder", root=str(tmp_path)), "here", side=20)
    assert found.x.shape == (12, 20, 20, 3)
    assert found.y.tolist() == [0] * 6 + [1] * 6 and (found.x[:6] == 10).all() and (found.x[6:] == 200).all()
    (tmp_path / "cat" / "0.png").write_bytes(b"no image")
    with pytest.raises(FdamedError, match="not a readable image"):
        read(Domain(kind="folder", root=str(tmp_path)), "here")


def test_blended_digits_are_the_absolute_difference_to_a_patch_of_a_photograph(tmp_path: Path) -> None:
    from sklearn.datasets import load_sample_images

    write_idx(tmp_path, train=30, test=20)
    plain = read(Domain(kind="idx", root=str(tmp_path)), "here")
    found = read(Domain(kind="blended", root=str(tmp_path)), "here")
    assert found.x.shape == (50, 28, 28, 3) and found.y.tolist() == plain.y.tolist()
    assert found.test.tolist() == plain.test.tolist() and found.origin == plain.origin
    again = read(Domain(kind="blended", root=str(tmp_path)), "here")
    assert (found.x == again.x).all()
    digit = plain.x[7].astype(int)[..., None]
    windows = [
        np.lib.stride_tricks.sliding_window_view(photograph, (28, 28, 3))[:, :, 0]
        for photograph in load_sample_images().images
    ]
    corner = digit[0, 0, 0]
    fits = [np.argwhere((np.abs(w[..., 0, 0, :].astype(int) - corner) == found.x[7, 0, 0]).all(-1)) for w in windows]
    same = [
        (np.abs(w[a, b].astype(int) - digit) == found.x[7]).all()
        for w, f in zip(windows, fits, strict=True)
        for a, b in f
    ]
    assert sum(same) >= 1


def test_a_photometric_shift_changes_contrast_first_and_brightness_then(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "set.npz",
        x=np.array([[[0, 100, 255, 40]]], np.uint8),
        y=[0],
        x_test=np.zeros((1, 1, 4), np.uint8),
        y_test=[0],
    )
    shift = {"contrast": 0.5, "brightness": 0.2}
    found = read(Domain.model_validate({"kind": "npz", "root": str(tmp_path / "set.npz"), "shift": shift}), "here")
    assert found.x[0].ravel().tolist() == [51, 101, 178, 71]  # 255 / 2 + 51 = 178.5, rounded to even
    bright = Domain.model_validate({"kind": "npz", "root": str(tmp_path / "set.npz"), "shift": {"brightness": 0.8}})
    assert read(bright, "here").x[0].ravel().tolist() == [204, 255, 255, 244]
