"""`fdamed cache` as a user starts it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image
from pydicom.uid import JPEG2000Lossless, RLELossless

from fdamed.cli.main import main
from fdamed.data.loader import load
from tests.support.dicom_files import compressed, dataset, thorax, write


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A configuration and one hospital's manifest over DICOM, JPEG and PNG files."""
    data = tmp_path / "data"
    data.mkdir()
    gray = thorax(120, 100, bits=8).astype(np.uint8)
    names = []
    for number in range(16):
        name = f"CANARY-{number:02}"
        image = np.roll(gray, number, axis=1)
        if number % 4 == 0:
            write(data / name, dataset(image.astype(np.uint16) * 8, PhotometricInterpretation="MONOCHROME1"))
        elif number % 4 == 1:
            write(data / name, compressed(image, (RLELossless, JPEG2000Lossless)[number // 4 % 2], 8))
        else:
            Image.fromarray(image).save(data / name, format=("JPEG", "PNG")[number % 2])
        names.append(name)
    content = {
        "study": "demo",
        "results": str(tmp_path / "results"),
        "data": {"layout": "nih", "root": str(data), "reject_share": 0.1},
        "split": {"by": "view", "label": "Edema", "clients": {"A": "frontal", "B": "lateral"}, "target": "A"},
        "image": {"size": 64},
        "runs": {"fedavg": {}},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    folder = tmp_path / "results" / "demo" / "clients" / "A"
    folder.mkdir(parents=True)
    rows = pd.DataFrame(
        {
            "image": names,
            "patient": [f"p{n}" for n in range(16)],
            "sex": ["F", "M"] * 8,
            "y": np.arange(16).astype(np.int8) // 2 % 2,
            "split": np.repeat(["train", "adapt", "val", "test"], 4),
        }
    )
    rows.to_parquet(folder / "manifest.parquet")
    return tmp_path


def command(study: Path, *more: str, client: str = "A") -> int:
    return main(["cache", "--config", str(study / "config.yaml"), "--client", client, "--workers", "2", *more])


def test_a_manifest_of_mixed_formats_becomes_a_cache(study: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = study / "results" / "demo" / "clients" / "A"
    assert command(study) == 0
    data = load(folder, ("train", "adapt", "val", "test"), heads=("sex",))
    assert data.images.shape == (16, 64, 64)
    assert data.y.tolist() == [0, 0, 1, 1] * 4
    assert (folder / "rejects.csv").read_text() == "file,row,reason,detail\n"
    assert command(study) == 0
    said = capfd.readouterr()
    assert "A: 16 images, 16 decoded now, rejected: none" in said.err
    assert "A: 16 images, 0 decoded now, rejected: none" in said.err
    assert said.out == "", "nothing was left out"
    assert "CANARY" not in said.out + said.err


def test_refusals_are_counted_on_screen_and_named_only_in_the_hospital(
    study: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (study / "data" / "CANARY-05").write_bytes(b"DICM")
    assert command(study) == 0
    said = capfd.readouterr()
    assert "15 images, 16 decoded now, rejected: NOT_AN_IMAGE 1" in said.err, "the log of the job is the hospital's"
    assert said.out == "left out at A: NOT_AN_IMAGE (1 to 10)\n", "it goes to the log of the whole study"
    (study / "data" / "CANARY-06").write_bytes(b"")
    assert command(study) == 2
    said = capfd.readouterr()
    assert "2 of 16 images were rejected" in said.err
    assert "data.reject_share" in said.err
    assert "CANARY" not in said.out + said.err


def test_mistakes_of_the_user_are_three_lines_and_exit_code_2(study: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert command(study, client="C") == 2
    assert "Choose one of: A, B" in capfd.readouterr().err
    assert command(study, client="B") == 2
    assert "Run `fdamed split --config " in capfd.readouterr().err
    assert command(study, "--workers", "0") == 2
    assert "at least 1" in capfd.readouterr().err
