"""New files for a model: which are images, in which order, and why some are rejected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fdamed.core.errors import FdamedError
from fdamed.data.image import Unreadable, read_gray
from fdamed.data.transforms import transform
from fdamed.export.input import Preparation, listed, prepared
from tests.support.dicom_files import dataset, thorax, write


def test_files_are_named_as_they_were_given_each_once_and_in_order(tmp_path: Path, monkeypatch) -> None:
    for name in ("b/2.png", "b/1.png", "b/deep/3.dcm", "b/.hidden.png", "b/.git/x.png", "a.jpg", "[odd].png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert listed(["a.jpg", "b", "a.jpg"]) == ["a.jpg", "b/1.png", "b/2.png", "b/deep/3.dcm"]
    assert listed(["./b/"]) == ["./b/1.png", "./b/2.png", "./b/deep/3.dcm"]
    assert listed(["b/*.png", "**/*.dcm"]) == ["b/1.png", "b/2.png", "b/deep/3.dcm"]
    assert listed(["[odd].png"]) == ["[odd].png"], "a file that is there is no pattern"
    assert listed(["none/*.png", "gone.dcm"]) == ["none/*.png", "gone.dcm"], (
        "what is not there is refused later, by name"
    )


def test_a_description_is_taken_back_and_one_of_other_pixels_is_refused() -> None:
    for preparation in (Preparation(48, False, ("frontal",)), Preparation(224, True)):
        assert Preparation.read(preparation.described(), "here") == preparation
    other = Preparation(48, False).described()
    other["steps"][4] |= {"shrink": "nearest"}
    with pytest.raises(FdamedError, match="differently than the training"):
        Preparation.read(other, "here")
    with pytest.raises(FdamedError, match="cannot be read"):
        Preparation.read({"size": 48}, "here")


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> tuple[list[str], list]:
    folder = tmp_path_factory.mktemp("incoming")
    gray = thorax()
    Image.fromarray((gray >> 4).astype(np.uint8)).save(folder / "good.png")
    Image.fromarray(np.full((64, 64), 7, np.uint8)).save(folder / "constant.png")
    write(folder / "negative.dcm", dataset(gray, PhotometricInterpretation="MONOCHROME1"))
    write(folder / "lateral.dcm", dataset(gray, ViewPosition="LL"))
    write(folder / "ct.dcm", dataset(gray, Modality="CT"))
    write(folder / "knee.dcm", dataset(gray, BodyPartExamined="KNEE"))
    whole = (folder / "negative.dcm").read_bytes()
    (folder / "split.dcm").write_bytes(whole[: len(whole) // 2])
    (folder / "notes.txt").write_text("no image")
    files = ["good.png", "constant.png", "negative.dcm", "lateral.dcm", "ct.dcm", "knee.dcm", "split.dcm", "notes.txt"]
    names = [str(folder / f) for f in [*files, "gone.dcm"]]
    return names, list(prepared(names, Preparation(32, False, ("frontal",)), workers=1))


def test_every_refused_file_has_its_reason_and_the_order_is_kept(results) -> None:
    names, found = results
    reasons = {Path(n).name: r.reason for n, r in zip(names, found, strict=True) if isinstance(r, Unreadable)}
    short = {"WRONG_LENGTH", "TRUNCATED", "UNDECODABLE"}
    assert reasons.pop("split.dcm") in short
    assert reasons == {
        "constant.png": "CONSTANT",
        "lateral.dcm": "OTHER_VIEW",
        "ct.dcm": "NOT_A_RADIOGRAPH",
        "knee.dcm": "NOT_CHEST",
        "notes.txt": "NOT_AN_IMAGE",
        "gone.dcm": "MISSING",
    }
    assert not any("CANARY" in r.detail or "Doe" in r.detail for r in found if isinstance(r, Unreadable))


def test_pixels_are_those_of_the_training_cache(results) -> None:
    names, found = results
    for place in (0, 2):
        assert np.array_equal(found[place], transform(read_gray(names[place]), 32, False))
