"""Hundreds of damaged, inconsistent and enormous image files: rejected with a reason, in little time and memory."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydicom.data import get_testdata_file
from pydicom.uid import JPEG2000Lossless, JPEGBaseline8Bit, JPEGLosslessSV1, RLELossless

from fdamed.data.image import REASONS, Unreadable
from fdamed.data.worker_pool import run_isolated
from tests.faults import studies
from tests.integration.test_mutants import mutate, summary
from tests.support.dicom_files import compressed, dataset, read, thorax, write

MUTANTS, CUTS = 1000, 500
HANG = 5.0
"""Seconds that one file may take."""
VALUES = """
NaN nan -nan inf -inf Infinity 1e400 -1e400 0 0.0 -0 1e-300 1e300 abc 1_0 0x10 1,5 1e39 --1
"""
TAGS = ("RescaleSlope", "RescaleIntercept", "WindowCenter", "WindowWidth")


@pytest.mark.parametrize("tag", TAGS)
def test_twenty_values_of_a_header_give_a_finite_image_or_a_reason(tmp_path: Path, tag: str) -> None:
    tags = {"RescaleSlope": "1", "RescaleIntercept": "0", "WindowCenter": "2000", "WindowWidth": "3000"}
    raw = write(tmp_path / "seed", dataset(thorax(), **tags | {tag: "8" * 15})).read_bytes()
    assert raw.count(b"8" * 15 + b" ") == 1
    values = ["", *VALUES.split()]
    assert len(values) == 20
    accepted = []
    for number, value in enumerate(values):
        path = tmp_path / str(number)
        path.write_bytes(raw.replace(b"8" * 15 + b" ", value.ljust(16).encode()))
        try:
            image = read(path)
        except Unreadable as refused:
            assert refused.reason in REASONS
            continue
        assert np.isfinite(image).all() and image.min() < image.max(), value
        accepted.append(value)
    assert set(accepted) <= {"0", "0.0", "-0", "1e-300", ""}, "a plain number, or none at all"


def seeds(folder: Path) -> list[bytes]:
    eight, twelve = thorax(64, 48, bits=8).astype(np.uint8), thorax(64, 48)
    made = [dataset(twelve, RescaleSlope="1", RescaleIntercept="-1024"), dataset(eight, 8, syntax="1.2.840.10008.1.2")]
    made += [compressed(twelve, syntax) for syntax in (RLELossless, JPEG2000Lossless, JPEGLosslessSV1)]
    made += [compressed(eight, JPEGBaseline8Bit, 8)]
    files = [write(folder / f"seed{i}", ds) for i, ds in enumerate(made)]
    names = (
        "MR_small_jpeg_ls_lossless.dcm", "MR_small_RLE.dcm", "MR_small_jp2klossless.dcm", "JPEG-LL.dcm",
        "CT_small.dcm", "MR_small_bigendian.dcm",
    )  # fmt: skip
    files += [Path(str(found)) for name in names if (found := get_testdata_file(name, download=False))]
    return [f.read_bytes() for f in files]


@pytest.mark.faults
def test_another_thousand_mutants_are_accepted_whole_or_refused_within_seconds(tmp_path: Path) -> None:
    originals = seeds(tmp_path)
    assert len(originals) >= 10
    rng = np.random.default_rng(17)
    paths = []
    for number in range(MUTANTS):
        path = tmp_path / f"{number:04}.dcm"
        path.write_bytes(mutate(originals[number % len(originals)], rng))
        paths.append(str(path))
    results = list(run_isolated(paths, summary, workers=1, seconds=HANG))
    reasons = Counter(r.reason for _, r in results if isinstance(r, Unreadable))
    accepted = [r for _, r in results if not isinstance(r, Unreadable)]
    assert len(accepted) + sum(reasons.values()) == MUTANTS
    assert all(finite and 0 <= low < high <= 1 for finite, low, high in accepted)
    assert reasons["TIMEOUT"] == 0 and set(reasons) <= set(REASONS)
    print(len(originals), "seeds", len(accepted), "accepted", dict(reasons))


@pytest.mark.faults
def test_none_of_five_hundred_truncated_jpegs_is_accepted(tmp_path: Path) -> None:
    gray = Image.fromarray(thorax(300, 260, bits=8).astype(np.uint8))
    kinds = {
        "baseline": (gray, {}), "progressive": (gray, {"progressive": True}), "rgb": (gray.convert("RGB"), {}),
        "coarse": (gray, {"quality": 20}), "fine": (gray, {"quality": 98, "optimize": True}),
    }  # fmt: skip
    count = 0
    for name, (image, options) in kinds.items():
        image.save(tmp_path / name, "JPEG", **options)
        whole = (tmp_path / name).read_bytes()
        read(tmp_path / name)
        for end in np.linspace(0, len(whole) - 3, CUTS // len(kinds)).astype(int):
            (tmp_path / "split").write_bytes(whole[:end])
            with pytest.raises(Unreadable):
                read(tmp_path / "split")
            count += 1
    assert count == CUTS


def deflated_bomb(path: Path) -> Path:
    """A DICOM file below a megabyte whose deflated data set unpacks to 850 MB."""
    raw = write(path, dataset(thorax())).read_bytes()
    (length,) = struct.unpack("<I", raw[140:144])
    meta = bytearray(raw[: 144 + length].replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.1.99"))
    meta[140:144] = struct.pack("<I", length + 2)
    at = meta.find(b"1.2.840.10008.1.2.1.99")
    meta[at - 2 : at] = struct.pack("<H", 22)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = b"\0" * 10_000_000
    body = b"".join(packer.compress(block) for _ in range(85)) + packer.flush()
    path.write_bytes(bytes(meta) + body)
    assert 700_000 < path.stat().st_size < 1_000_000
    return path


def png_bomb(path: Path, side: int = 30_000) -> Path:
    """A PNG of side x side black pixels in about a hundred kilobytes."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    packer = zlib.compressobj(9)
    row = b"\0" * (side // 8 + 1)
    body = b"".join(packer.compress(row * 100) for _ in range(side // 100)) + packer.flush()
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b""))
    return path


MEASURED = """
import json, sys, time
from fdamed.data.image import Unreadable
from fdamed.data.image import read_gray, read_header
import fdamed.data.dicom.reader, PIL.Image, pydicom
results = []
for path in sys.argv[1:]:
    for look in (read_header, read_gray):
        begin = time.process_time()
        try:
            look(path)
            reason = "accepted"
        except Unreadable as refused:
            reason = refused.reason
        results.append([reason, time.process_time() - begin])
# Not ru_maxrss, which remembers the parent's size from before exec.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([results, int(peak.split()[1]) / 1024]))
"""


@pytest.mark.faults
def test_bombs_are_refused_within_a_second_and_two_hundred_megabytes(tmp_path: Path) -> None:
    paths = [str(deflated_bomb(tmp_path / "a.dcm")), str(png_bomb(tmp_path / "b.png"))]
    child = subprocess.run(
        [sys.executable, "-c", MEASURED, *paths], capture_output=True, text=True, check=True, env=studies.environment()
    )
    results, megabytes = json.loads(child.stdout)
    assert [reason for reason, _ in results] == ["DEFLATED", "DEFLATED", "TOO_LARGE", "TOO_LARGE"]
    assert max(seconds for _, seconds in results) < 1.0
    assert megabytes < 200
    print(results, megabytes)
