"""JPEG and PNG to pixels: what is read, and what is refused."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fdamed.data.image import REASONS, Unreadable, kind, read_header
from tests.support.dicom_files import dataset, read, thorax, write

GRAY = thorax(bits=8).astype(np.uint8)


def refused(path: Path) -> str:
    with pytest.raises(Unreadable) as caught:
        read(path)
    return caught.value.reason


def png(path: Path, width: int, height: int, body: bytes) -> Path:
    """A gray PNG with any header over any compressed body."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b""))
    return path


def test_eight_bit_gray_is_divided_by_255(tmp_path: Path) -> None:
    Image.fromarray(GRAY).save(tmp_path / "a.png")
    image = read(tmp_path / "a.png")
    assert image.dtype == np.float32
    np.testing.assert_allclose(image, GRAY / 255, atol=1e-7)


def test_sixteen_bit_png_is_scaled_by_what_it_holds(tmp_path: Path) -> None:
    Image.fromarray(thorax(200, 200, bits=12)).save(tmp_path / "a.png")
    image = read(tmp_path / "a.png")
    assert image.min() == 0
    assert image.max() == 1
    assert np.corrcoef(image.ravel(), thorax(200, 200, bits=12).ravel())[0, 1] > 0.999


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P"])
def test_gray_in_a_color_mode_is_gray(tmp_path: Path, mode: str) -> None:
    Image.fromarray(GRAY).convert(mode).save(tmp_path / "a.png")
    np.testing.assert_allclose(read(tmp_path / "a.png"), GRAY / 255, atol=1e-6)


def test_a_gray_rgb_jpeg_is_read_and_a_photograph_is_refused(tmp_path: Path) -> None:
    Image.fromarray(GRAY).convert("RGB").save(tmp_path / "gray.jpg", quality=75)
    assert np.abs(read(tmp_path / "gray.jpg") - GRAY / 255).mean() < 0.02
    Image.fromarray(np.stack([GRAY, 255 - GRAY, GRAY // 2], axis=-1)).save(tmp_path / "color.jpg")
    assert refused(tmp_path / "color.jpg") == "COLOR"


def test_the_first_bytes_decide_and_not_the_suffix(tmp_path: Path) -> None:
    Image.fromarray(GRAY).save(tmp_path / "a.dcm", format="PNG")
    write(tmp_path / "b.jpg", dataset(thorax()))
    assert kind(tmp_path / "a.dcm") == "png"
    assert kind(tmp_path / "b.jpg") == "dicom"
    assert read(tmp_path / "b.jpg").shape == (96, 80)


def test_what_is_no_image_is_refused_in_one_word(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("patient 4711")
    (tmp_path / "empty").write_bytes(b"")
    Image.fromarray(GRAY).save(tmp_path / "a.bmp")
    Image.fromarray(GRAY).save(tmp_path / "a.tif")
    names = {
        "text": "NOT_AN_IMAGE",
        "empty": "EMPTY",
        "a.bmp": "NOT_AN_IMAGE",
        "a.tif": "NOT_AN_IMAGE",
        "no": "MISSING",
    }
    for name, reason in {**names, ".": "MISSING", "nul\0": "UNREADABLE"}.items():
        with pytest.raises(Unreadable) as caught:
            read_header(tmp_path / name)
        assert caught.value.reason in (reason, "MISSING"), name


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_no_truncation_is_accepted(tmp_path: Path, suffix: str) -> None:
    Image.fromarray(thorax(200, 160, bits=8).astype(np.uint8)).save(tmp_path / f"a.{suffix}")
    whole = (tmp_path / f"a.{suffix}").read_bytes()
    cut = tmp_path / "split"
    for end in {*range(0, len(whole) - 1, max(1, len(whole) // 250)), *range(len(whole) - 12, len(whole) - 8)}:
        cut.write_bytes(whole[:end])
        assert refused(cut) in REASONS, end


def test_a_flat_image_is_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((64, 64), 9, np.uint8)).save(tmp_path / "a.png")
    assert refused(tmp_path / "a.png") == "CONSTANT"


def test_pixel_bombs_are_refused_from_the_header(tmp_path: Path) -> None:
    body = zlib.compress(b"\0" * 1000)
    for width, height in ((30_000, 30_000), (8_000, 8_000), (2**31 - 1, 2**31 - 1)):
        bomb = png(tmp_path / "bomb.png", width, height, body)
        for look in (read_header, read):
            with pytest.raises(Unreadable, match="TOO_LARGE"):
                look(bomb)


def test_damaged_bytes_in_the_middle_are_refused_or_still_an_image(tmp_path: Path) -> None:
    Image.fromarray(GRAY).save(tmp_path / "a.png")
    whole = bytearray((tmp_path / "a.png").read_bytes())
    rng = np.random.default_rng(0)
    for _ in range(100):
        mutant = bytearray(whole)
        for at in rng.integers(8, len(whole), 3):
            mutant[at] = rng.integers(0, 256)
        (tmp_path / "m.png").write_bytes(mutant)
        try:
            image = read(tmp_path / "m.png")
        except Unreadable as error:
            assert error.reason in REASONS
        else:
            assert np.isfinite(image).all()
            assert image.min() < image.max()
