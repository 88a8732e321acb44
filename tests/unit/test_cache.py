"""The image cache: what a cached image is, what is decoded again and what is not, and what stops a build."""

from __future__ import annotations

import csv
import errno
import os
from itertools import chain, islice, repeat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fdamed.config.model import Image as Settings
from fdamed.core.errors import FdamedError
from fdamed.data import cache
from fdamed.data.cache import Report, build
from fdamed.data.datasets.nih import Nih
from fdamed.data.image import Gray, Unreadable, read_gray
from fdamed.data.loader import load
from fdamed.data.safe_paths import Roots
from tests.support.dicom_files import dataset, thorax, write

SIZE = 32


def new_image(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (40, 32), dtype=np.uint8)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    for number in range(24):
        Image.fromarray(new_image(number)).save(folder / "deep" / f"{number:02}.png")
    return folder


def manifest(count: int = 24) -> pd.DataFrame:
    numbers = np.arange(count)
    return pd.DataFrame(
        {
            "image": [f"deep/{n:02}.png" for n in numbers],
            "patient": [f"p{n}" for n in numbers],
            "y": (numbers // 2 % 2).astype(np.int8),
            "split": np.array(["test", "train", "adapt", "val"])[(numbers // 4) % 4],
        }
    )


def make(rows: pd.DataFrame, root: Path, size: int = SIZE, share: float = 0.5, equalize: bool = False) -> Report:
    data = Nih(layout="nih", root=str(root), reject_share=share)
    return build(rows, root.parent / "client", data, Settings(size=size, equalize=equalize), workers=2)


def cached(root: Path) -> dict[str, np.ndarray]:
    images = np.load(root.parent / "client" / "images.npy")
    order = pd.read_parquet(root.parent / "client" / "order.parquet")
    return dict(zip(order["image"], images, strict=True))


def rejects(root: Path) -> list[dict[str, str]]:
    with open(root.parent / "client" / "rejects.csv", newline="") as file:
        return list(csv.DictReader(file))


# --- one image


def test_a_tall_image_is_shrunk_whole_by_area_and_padded_with_black() -> None:
    from fdamed.data.transforms import transform

    tall = np.zeros((64, 32), np.float32)
    tall[0, 0], tall[0, 1], tall[1, 0], tall[1, 1] = 0.2, 0.4, 0.6, 0.8
    tall[-2:, -2:] = 1
    out = transform(Gray(tall), 32, False)
    assert out.shape == (32, 32)
    assert out.dtype == np.uint8
    assert out[0, 8] == round(255 * 0.5)
    assert out[31, 23] == 255
    assert out[:, :8].max() == 0
    assert out[:, 24:].max() == 0


def test_a_small_image_grows_without_blocks() -> None:
    from fdamed.data.transforms import transform

    ramp = np.tile(np.linspace(0, 1, 16, dtype=np.float32), (16, 1))
    assert len(np.unique(transform(Gray(ramp), 64, False))) > 40


def test_equalization_uses_all_grays_and_leaves_the_border_out() -> None:
    from fdamed.data.transforms import transform

    rng = np.random.default_rng(0)
    dark = (0.1 * rng.random((64, 32), dtype=np.float32)) ** 2
    out = transform(Gray(dark), 64, True)
    inside = out[:, 16:48]
    assert out[:, :16].max() == 0
    assert abs(float(np.median(inside)) - 127) < 8
    assert abs((inside < 64).mean() - 0.25) < 0.05


def test_what_is_flat_after_shrinking_or_too_narrow_is_refused() -> None:
    from fdamed.data.transforms import transform

    speck = np.zeros((512, 512), np.float32)
    speck[0, 0] = 1
    with pytest.raises(Unreadable, match="CONSTANT"):
        transform(Gray(speck), 16, False)
    with pytest.raises(Unreadable, match="UNSUPPORTED"):
        transform(Gray(np.random.default_rng(0).random((4, 900), dtype=np.float32)), 16, False)


def test_equalizing_pixels_that_differ_by_rounding_only_is_refused() -> None:
    from fdamed.data.transforms import transform

    flat = np.full((64, 64), 0.3, np.float32)
    flat[0, 0] = np.nextafter(np.float32(0.3), np.float32(1))
    with pytest.raises(Unreadable, match="CONSTANT"):
        transform(Gray(flat), 64, True)


@pytest.mark.parametrize("equalize", [False, True])
@pytest.mark.parametrize("shape", [(64, 32), (37, 51), (20, 9), (48, 48), (97, 130)])
def test_the_bytes_are_those_of_monais_transforms(shape: tuple[int, int], equalize: bool) -> None:
    import torch
    from monai.data.meta_obj import set_track_meta
    from monai.transforms import HistogramNormalize, Resize, SpatialPad

    from fdamed.data.transforms import transform

    set_track_meta(False)
    pixels = np.random.default_rng(shape[0]).random(shape, dtype=np.float32) ** 2
    how = {"mode": "bilinear", "align_corners": False} if max(shape) < 48 else {"mode": "area"}
    shown = (Resize(48, size_mode="longest", **how)(torch.from_numpy(pixels)[None]) * -0.5 + 0.75).clamp(0, 1)
    if equalize:
        shown = HistogramNormalize(num_bins=256, min=0.0, max=1.0)(shown)
    expected = SpatialPad((48, 48))(shown)[0].mul(255).round().to(torch.uint8).numpy()
    assert np.array_equal(transform(Gray(pixels, -0.5, 0.75), 48, equalize), expected)


# --- many images


def test_images_stand_in_the_order_of_splits_and_are_what_one_process_makes(root: Path) -> None:
    from fdamed.data.transforms import transform

    report = make(manifest(), root)
    assert report == Report(24, 24, {})
    order = pd.read_parquet(root.parent / "client" / "order.parquet")
    assert order["split"].tolist() == ["train"] * 8 + ["adapt"] * 4 + ["val"] * 4 + ["test"] * 8
    assert order["image"].tolist()[:2] == ["deep/04.png", "deep/05.png"]
    for name, image in cached(root).items():
        alone = transform(read_gray(root / name), SIZE, False)
        assert np.array_equal(image, alone), name
    assert isinstance(load(root.parent / "client", ("train", "adapt")).images, np.memmap)
    assert rejects(root) == []


def test_only_new_and_changed_files_are_decoded_again_even_after_the_outputs_were_deleted(root: Path) -> None:
    assert make(manifest(20), root).decoded == 20
    first = cached(root)
    for name in ("images.npy", "order.parquet", "rejects.csv"):
        (root.parent / "client" / name).unlink()
    assert make(manifest(), root).decoded == 4
    assert all(np.array_equal(cached(root)[n], i) for n, i in first.items())
    Image.fromarray(new_image(99)).save(root / "deep" / "03.png")
    assert make(manifest(), root).decoded == 1
    assert not np.array_equal(cached(root)["deep/03.png"], first["deep/03.png"])
    assert make(manifest(), root).decoded == 0
    assert make(manifest().iloc[::-1], root).decoded == 0
    assert np.array_equal(cached(root)["deep/05.png"], first["deep/05.png"])
    assert make(manifest(), root, size=16).decoded == 24
    assert make(manifest(), root, size=16, equalize=True).decoded == 24


def test_a_killed_run_loses_neither_its_own_rows_nor_those_of_the_store(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    assert make(manifest(10), root).decoded == 10
    with monkeypatch.context() as patched:
        patched.setattr(cache, "reuse", killed)
        with pytest.raises(KeyboardInterrupt):
            make(manifest(), root)
    with monkeypatch.context() as patched:
        real = cache.run_isolated
        patched.setattr(cache, "run_isolated", lambda *given: islice(chain(islice(real(*given), 6), repeat(None)), 7))
        with pytest.raises(TypeError):
            make(manifest(), root)
    whole = (root.parent / "client" / ".cache" / "draft.jsonl").read_text()
    (root.parent / "client" / ".cache" / "draft.jsonl").write_text(whole[:-9])
    assert make(manifest(), root).decoded == 24 - 10 - 5, "the last line was cut"


def test_a_damaged_store_is_noticed_row_by_row_and_a_foreign_one_as_a_whole(root: Path) -> None:
    make(manifest(), root)
    good = cached(root)
    store = root.parent / "client" / ".cache" / "store.npy"
    raw = bytearray(store.read_bytes())
    for row in (0, 7, 13):
        raw[128 + row * SIZE * SIZE + 5] ^= 0x10
    store.write_bytes(raw)
    assert make(manifest(), root).decoded == 3
    assert all(np.array_equal(cached(root)[n], i) for n, i in good.items())
    store.write_bytes(b"not an array")
    assert make(manifest(), root).decoded == 24
    (store.with_suffix(".jsonl")).write_text('"other"\n[1, 2\n')
    assert make(manifest(), root).decoded == 24
    assert all(np.array_equal(cached(root)[n], i) for n, i in good.items())


def test_rejected_files_are_listed_with_their_reason_and_leave_no_gap(root: Path) -> None:
    (root / "deep" / "01.png").write_bytes(b"")
    (root / "deep" / "06.png").write_text("no image")
    (root / "deep" / "13.png").unlink()
    whole = (root / "deep" / "20.png").read_bytes()
    (root / "deep" / "20.png").write_bytes(whole[: len(whole) // 2])
    write(root / "deep" / "22.png", dataset(thorax(), Modality="CT"))
    report = make(manifest(), root)
    assert report.images == 19
    assert {r["file"]: r["reason"] for r in rejects(root)} == {
        "deep/01.png": "EMPTY",
        "deep/06.png": "NOT_AN_IMAGE",
        "deep/13.png": "MISSING",
        "deep/20.png": "TRUNCATED",
        "deep/22.png": "NOT_A_RADIOGRAPH",
    }
    assert len(load(root.parent / "client", ("train", "adapt", "val", "test"))) == 19
    again = make(manifest(), root)
    assert again.decoded == 0
    assert again.rejected == report.rejected


def test_too_many_refused_files_stop_the_build_and_the_work_done_is_kept(root: Path) -> None:
    for number in range(3):
        (root / "deep" / f"{number:02}.png").write_text("no image")
    with pytest.raises(FdamedError, match=r"3 of 24 images were rejected \(NOT_AN_IMAGE 3\)") as caught:
        make(manifest(), root, share=0.05)
    assert not (root.parent / "client" / "images.npy").exists()
    assert Path(caught.value.where).read_text().count("NOT_AN_IMAGE") == 3
    for number in range(3):
        Image.fromarray(new_image(number)).save(root / "deep" / f"{number:02}.png")
    assert make(manifest(), root, share=0.05) == Report(24, 3, {})


def test_a_class_that_vanishes_from_a_split_stops_the_build(root: Path) -> None:
    for number in (10, 11):
        (root / "deep" / f"{number}.png").write_text("no image")
    with pytest.raises(FdamedError, match="all 2 images with y = 1 in part adapt were rejected"):
        make(manifest(), root)


def test_a_full_disk_is_known_before_the_first_image(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(FdamedError, match="the disk is full"):
        make(manifest(), root)
    assert not (root.parent / "client" / "images.npy").exists()
    assert not (root.parent / "client" / ".cache" / "draft.npy").exists()


def test_paths_never_leave_the_root(root: Path) -> None:
    secret = root.parent / "secret.png"
    Image.fromarray(new_image(0)).save(secret)
    (root / "link.png").symlink_to(secret)
    (root / "out").symlink_to(root.parent)
    (root / "loop").symlink_to(root / "loop")
    (root / "inside.png").symlink_to(root / "deep" / "00.png")
    roots = Roots.of(root)
    bad = [
        "../secret.png",
        "/etc/passwd",
        str(secret),
        "deep/../../secret.png",
        "link.png",
        "out/secret.png",
        "",
        "..",
        ".",
    ]
    for image in [*bad, "deep/..", "a\0b.png", "deep/", "out/../../x", "//etc/passwd", "./../secret.png"]:
        with pytest.raises(Unreadable, match=r"PATH_OUTSIDE_ROOT|UNREADABLE"):
            roots.locate(image)
    assert roots.locate("inside.png") == (root / "deep" / "00.png").resolve()
    assert roots.locate("deep/../deep/00.png") == (root / "deep" / "00.png").resolve()
    rows = manifest()
    rows.loc[3, "image"] = "../secret.png"
    rows.loc[7, "image"] = "loop"
    make(rows, root)
    assert {r["file"]: r["reason"] for r in rejects(root)} == {
        "../secret.png": "PATH_OUTSIDE_ROOT",
        "loop": "UNREADABLE",
    }
