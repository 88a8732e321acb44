"""A thousand damaged DICOM files: none crashes this process, none gives a black or non-finite image, none is lost."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
from pydicom.data import get_testdata_file
from pydicom.uid import JPEG2000Lossless, JPEGBaseline8Bit, JPEGLosslessSV1, RLELossless

from fdamed.data.image import REASONS, Unreadable, read_gray
from fdamed.data.worker_pool import run_isolated
from tests.support.dicom_files import compressed, dataset, lut, read_pixels, thorax, write

COUNT = 1000


def summary(path: str) -> tuple[bool, float, float]:
    """In a worker: is every pixel finite, and the least and greatest."""
    image = read_pixels(path, modalities=None)
    return bool(np.isfinite(image).all()), float(image.min()), float(image.max())


def seeds(folder: Path) -> list[bytes]:
    eight, twelve = thorax(64, 48, bits=8).astype(np.uint8), thorax(64, 48)
    table = dataset(twelve)
    table.VOILUTSequence = [lut([i // 16 for i in range(4096)], 0, 8)]
    made = [
        dataset(twelve, RescaleSlope="1", RescaleIntercept="-1024", WindowCenter=1000, WindowWidth=3000),
        dataset(twelve, syntax="1.2.840.10008.1.2.2"),
        dataset(eight, 8, syntax="1.2.840.10008.1.2"),
        table,
        compressed(twelve, RLELossless),
        compressed(twelve, JPEG2000Lossless),
        compressed(twelve, JPEGLosslessSV1),
        compressed(eight, JPEGBaseline8Bit, 8),
    ]
    files = [write(folder / f"seed{i}", ds) for i, ds in enumerate(made)]
    files += [Path(str(get_testdata_file(n))) for n in ("MR_small_jpeg_ls_lossless.dcm", "MR_small_RLE.dcm")]
    return [f.read_bytes() for f in files]


def mutate(raw: bytes, rng: np.random.Generator) -> bytes:
    out = bytearray(raw)
    way = rng.integers(6)
    at = int(rng.integers(132, len(out)))
    if way == 0:
        for place in rng.integers(132, len(out), int(rng.integers(1, 12))):
            out[place] = rng.integers(256)
    elif way == 1:
        del out[at:]
    elif way == 2:
        out[at : at + int(rng.integers(1, 64))] = b""
    elif way == 3:
        out[at:at] = rng.integers(0, 256, int(rng.integers(1, 64)), dtype=np.uint8).tobytes()
    elif way == 4:
        out[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\x7f\0\0", b"NaN "])
    else:
        pixels = max(out.find(b"\xe0\x7f\x10\x00"), 132)
        for place in rng.integers(pixels, len(out), int(rng.integers(1, 30))):
            out[place] ^= 1 << int(rng.integers(8))
    return bytes(out)


def test_a_thousand_mutants_are_accepted_whole_or_refused_with_a_reason(tmp_path: Path) -> None:
    originals = seeds(tmp_path)
    assert len(originals) >= 8
    rng = np.random.default_rng(2026)
    paths = []
    for number in range(COUNT):
        path = tmp_path / f"{number:04}.dcm"
        path.write_bytes(mutate(originals[number % len(originals)], rng))
        paths.append(str(path))
    results = list(run_isolated(paths, summary, workers=1, seconds=20))
    assert sorted(p for p, _ in results) == paths
    reasons = Counter(r.reason for _, r in results if isinstance(r, Unreadable))
    accepted = [r for _, r in results if not isinstance(r, Unreadable)]
    assert len(accepted) + sum(reasons.values()) == COUNT
    assert set(reasons) <= set(REASONS)
    assert all(finite and 0 <= low < high <= 1 for finite, low, high in accepted)
    assert 100 < len(accepted) < 900
    assert reasons["TIMEOUT"] == 0
    print(dict(reasons), len(accepted))


def dangerous(path: str) -> str:
    """In a worker: die, hang or read, as the file's content says."""
    content = Path(path).read_text()
    if content == "die":
        os.kill(os.getpid(), 11)
    if content == "hang":
        time.sleep(60)
    if content == "eat":
        return str(len(bytearray(8 << 30)))
    if content == "bug":
        raise KeyError("a fault of the program")
    read_gray(path)
    return content


def test_a_worker_that_dies_hangs_or_eats_memory_costs_one_file(tmp_path: Path) -> None:
    contents = ["x"] * 12
    contents[2], contents[5], contents[6], contents[9] = "die", "hang", "die", "eat"
    paths = []
    for number, content in enumerate(contents):
        (tmp_path / f"{number:02}").write_text(content)
        paths.append(str(tmp_path / f"{number:02}"))
    results = dict(run_isolated(paths, dangerous, workers=2, seconds=2))
    found = [results[p].reason for p in paths if isinstance(results[p], Unreadable)]
    expected = ["NOT_AN_IMAGE"] * 12
    expected[2], expected[5], expected[6], expected[9] = "CRASHED", "TIMEOUT", "CRASHED", "MEMORY"
    assert found == expected


def test_a_fault_of_the_program_is_not_hidden_as_a_refused_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("bug")
    try:
        list(run_isolated([str(tmp_path / "a")], dangerous, workers=1))
    except KeyError as error:
        assert "a fault of the program" in str(error)
    else:
        raise AssertionError("the fault was swallowed")


def test_no_items_start_no_worker() -> None:
    assert list(run_isolated([], dangerous, workers=4)) == []
