"""DICOM headers and pixels, against the standard's formulas worked by hand and against pydicom where it is right."""

from __future__ import annotations

import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.data import get_testdata_file
from pydicom.pixels import apply_modality_lut, apply_voi_lut
from pydicom.sequence import Sequence
from pydicom.uid import JPEG2000Lossless, JPEGBaseline8Bit, JPEGLosslessSV1, RLELossless

from fdamed.data.dicom.header import read_header
from fdamed.data.image import REASONS, Unreadable
from tests.support.dicom_files import compressed, dataset, lut, read_pixels, thorax, write

RAMP = np.arange(0, 256, dtype=np.uint16).reshape(16, 16)
REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "dicom"
FULL = {"WindowCenter": 128, "WindowWidth": 256}
"""LINEAR window that maps 0..255 to 0..1 exactly: (x - 127.5) / 255 + 0.5 = x / 255."""


def refused(path: Path, **options: object) -> str:
    with pytest.raises(Unreadable) as caught:
        read_pixels(path, **options)
    assert caught.value.reason in REASONS
    return caught.value.reason


# --- header


def test_the_header_is_an_allow_list_in_the_row_contracts_words(tmp_path: Path) -> None:
    header = read_header(write(tmp_path / "a", dataset(RAMP, BurnedInAnnotation="YES", Manufacturer="Maker")))
    assert header == {
        "view": "frontal",
        "projection": "PA",
        "sex": "F",
        "age": 62.0,
        "scanner": "Maker",
        "burned_in": True,
    }


def test_missing_tags_are_allowed(tmp_path: Path) -> None:
    bare = dataset(RAMP, Modality=None, BodyPartExamined=None, ViewPosition=None, PatientAge=None, PatientSex=None)
    header = read_header(write(tmp_path / "a", bare))
    assert set(header.values()) == {None}
    assert read_pixels(tmp_path / "a").shape == (16, 16)


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ({"Modality": "CT"}, "NOT_A_RADIOGRAPH"),
        ({"Modality": "MG"}, "NOT_A_RADIOGRAPH"),
        ({"BodyPartExamined": "RIBCAGE"}, "NOT_CHEST"),
        ({"BodyPartExamined": "EXTREMITY"}, "NOT_CHEST"),
    ],
)
def test_what_is_not_a_chest_radiograph_is_refused_with_its_reason(tmp_path: Path, tags: dict, reason: str) -> None:
    path = write(tmp_path / "a", dataset(RAMP, **tags))
    assert refused(path) == reason
    with pytest.raises(Unreadable, match=reason):
        read_header(path)
    assert read_pixels(path, modalities=None).shape == (16, 16)


def test_a_blank_view_position_gives_way_to_the_view_code(tmp_path: Path) -> None:
    ds = dataset(RAMP, ViewPosition="")
    item = lut([0, 1], 0, 8)
    item.clear()
    item.CodeMeaning = "antero-posterior"
    ds.ViewCodeSequence = Sequence([item])
    assert read_header(write(tmp_path / "a", ds))["projection"] == "AP"


# --- pixels, by hand


def test_a_linear_window_is_the_standards_formula(tmp_path: Path) -> None:
    path = write(tmp_path / "a", dataset(RAMP, WindowCenter=100, WindowWidth=51))
    x = RAMP.astype(float)
    expected = np.clip((x - 99.5) / 50 + 0.5, 0, 1)
    np.testing.assert_allclose(read_pixels(path), expected, atol=1e-6)
    assert read_pixels(path)[0, 0] == 0
    assert read_pixels(path)[15, 15] == 1


def test_linear_exact_and_sigmoid_differ_from_linear_as_the_standard_says(tmp_path: Path) -> None:
    x = RAMP.astype(float)
    exact = dataset(RAMP, WindowCenter=100, WindowWidth=50, VOILUTFunction="LINEAR_EXACT")
    np.testing.assert_allclose(
        read_pixels(write(tmp_path / "e", exact)), np.clip((x - 100) / 50 + 0.5, 0, 1), atol=1e-6
    )
    sigmoid = dataset(RAMP, WindowCenter=100, WindowWidth=50, VOILUTFunction="SIGMOID")
    np.testing.assert_allclose(
        read_pixels(write(tmp_path / "s", sigmoid)), 1 / (1 + np.exp(-4 * (x - 100) / 50)), atol=1e-6
    )


def test_a_linear_window_of_width_one_is_a_step(tmp_path: Path) -> None:
    image = read_pixels(write(tmp_path / "a", dataset(RAMP, WindowCenter=100, WindowWidth=1)))
    assert np.array_equal(image, (RAMP > 99).astype(np.float32))


def test_the_first_of_several_windows_counts(tmp_path: Path) -> None:
    several = dataset(RAMP, WindowCenter=[128, 20], WindowWidth=[256, 10])
    np.testing.assert_allclose(read_pixels(write(tmp_path / "a", several)), RAMP / 255, atol=1e-6)


def test_monochrome1_is_inverted_once_and_a_presentation_lut_shape_does_not_turn_it_back(tmp_path: Path) -> None:
    inverse = dataset(RAMP, PhotometricInterpretation="MONOCHROME1", PresentationLUTShape="INVERSE", **FULL)
    np.testing.assert_allclose(read_pixels(write(tmp_path / "a", inverse)), 1 - RAMP / 255, atol=1e-6)


def test_rescale_comes_before_the_window_and_a_negative_slope_turns_the_gray_scale(tmp_path: Path) -> None:
    rescaled = dataset(RAMP, RescaleSlope="2", RescaleIntercept="-100", WindowCenter=155.5, WindowWidth=511)
    np.testing.assert_allclose(
        read_pixels(write(tmp_path / "a", rescaled)), np.clip((2.0 * RAMP - 100 - 155) / 510 + 0.5, 0, 1), atol=1e-6
    )
    turned = dataset(RAMP, RescaleSlope="-1", RescaleIntercept="255", **FULL)
    np.testing.assert_allclose(read_pixels(write(tmp_path / "b", turned)), 1 - RAMP / 255, atol=1e-6)
    without = dataset(RAMP, RescaleSlope="-1", RescaleIntercept="0")
    image = read_pixels(write(tmp_path / "c", without))
    assert image[0, 0] == pytest.approx(1)
    assert image[15, 15] == pytest.approx(0, abs=1e-6)


def test_bits_above_the_stored_ones_are_not_pixels(tmp_path: Path) -> None:
    junk = RAMP | np.uint16(0xA000)
    np.testing.assert_allclose(read_pixels(write(tmp_path / "a", dataset(junk, bits=8, **FULL))), RAMP / 255, atol=1e-6)
    shifted = dataset((RAMP << 4) | np.uint16(0x000F), bits=8, **FULL)
    shifted.HighBit = 11
    np.testing.assert_allclose(read_pixels(write(tmp_path / "b", shifted)), RAMP / 255, atol=1e-6)


def test_signed_pixels_of_twelve_bits_get_their_sign_back(tmp_path: Path) -> None:
    values = RAMP.astype(np.int32) - 128
    stored = (values & 0x0FFF).astype(np.uint16).view(np.int16)
    signed = dataset(stored, bits=12, WindowCenter=0, WindowWidth=256)
    np.testing.assert_allclose(
        read_pixels(write(tmp_path / "a", signed)), np.clip((values + 0.5) / 255 + 0.5, 0, 1), atol=1e-6
    )


def test_without_a_window_hot_pixels_and_padding_do_not_set_the_scale(tmp_path: Path) -> None:
    image = np.tile(np.linspace(1000, 2000, 200).astype(np.uint16), (200, 1))
    image[0, 0] = 4095
    out = read_pixels(write(tmp_path / "a", dataset(image)))
    assert out[100, 199] > 0.99
    assert abs(out[100, 100] - 0.5) < 0.02
    image[:20] = 0
    padded = dataset(image)
    padded.add_new("PixelPaddingValue", "US", 0)
    out = read_pixels(write(tmp_path / "b", padded))
    assert abs(out[100, 100] - 0.5) < 0.02
    assert out[5, 5] == 0


def test_a_voi_table_is_preferred_to_a_window_and_uses_its_own_output_range(tmp_path: Path) -> None:
    table = [4095 - 16 * i for i in range(256)]
    ds = dataset(RAMP, WindowCenter=10, WindowWidth=10)
    ds.VOILUTSequence = Sequence([lut(table, 0, 12)])
    np.testing.assert_allclose(read_pixels(write(tmp_path / "a", ds)), (4095 - 16.0 * RAMP) / 4095, atol=1e-6)


@pytest.mark.parametrize("packed", [True, False])
def test_an_eight_bit_table_may_be_stored_by_bytes_or_by_words(tmp_path: Path, packed: bool) -> None:
    values = np.arange(255, -1, -1)
    ds = dataset(RAMP)
    ds.VOILUTSequence = Sequence([lut(values.astype("u1" if packed else "<u2").tobytes(), 0, 8, count=256)])
    np.testing.assert_allclose(read_pixels(write(tmp_path / "a", ds)), 1 - RAMP / 255, atol=1e-6)


def test_inputs_outside_a_table_take_its_ends_and_its_first_input_may_be_negative(tmp_path: Path) -> None:
    values = (RAMP.astype(np.int32) - 128).astype(np.int16)
    ds = dataset(values, bits=16)
    ds.VOILUTSequence = Sequence([lut([0, 100, 255], -1, 8)])
    out = read_pixels(write(tmp_path / "a", ds))
    assert out[0, 0] == 0
    assert out[15, 15] == 1
    assert out[8, 0] == np.float32(100 / 255)


def test_a_modality_table_stands_before_the_window(tmp_path: Path) -> None:
    ds = dataset(RAMP, **FULL)
    ds.ModalityLUTSequence = Sequence([lut([255 - i for i in range(256)], 0, 16)])
    ds.ModalityLUTSequence[0].ModalityLUTType = "US"
    np.testing.assert_allclose(read_pixels(write(tmp_path / "a", ds)), 1 - RAMP / 255, atol=1e-6)


# --- encodings


@pytest.mark.parametrize("syntax", ["1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16])
def test_the_three_uncompressed_encodings_give_the_same_pixels(tmp_path: Path, syntax: str, dtype: type) -> None:
    pixels = RAMP.astype(dtype)
    path = write(tmp_path / "a", dataset(pixels, bits=pixels.dtype.itemsize * 8, syntax=syntax, **FULL))
    np.testing.assert_allclose(read_pixels(path), RAMP / 255, atol=1e-6)


@pytest.mark.parametrize("syntax", [RLELossless, JPEG2000Lossless, JPEGLosslessSV1])
@pytest.mark.parametrize("bits", [8, 12, 16])
def test_lossless_compression_changes_no_pixel(tmp_path: Path, syntax: str, bits: int) -> None:
    pixels = thorax(bits=bits).astype(np.uint8 if bits == 8 else np.uint16)
    plain = read_pixels(write(tmp_path / "plain", dataset(pixels, bits)))
    packed = read_pixels(write(tmp_path / "packed", compressed(pixels, syntax, bits)))
    assert np.array_equal(plain, packed)


def test_jpeg_baseline_is_close_to_the_original(tmp_path: Path) -> None:
    pixels = thorax(bits=8).astype(np.uint8)
    window = {"WindowCenter": 128, "WindowWidth": 256}
    image = read_pixels(write(tmp_path / "a", compressed(pixels, JPEGBaseline8Bit, 8, **window)))
    assert np.abs(image - pixels / 255).mean() < 0.01


@pytest.mark.parametrize(
    "name",
    [
        *("MR_small.dcm", "MR_small_RLE.dcm", "MR_small_bigendian.dcm", "MR_small_implicit.dcm"),
        *("MR_small_jp2klossless.dcm", "MR_small_jpeg_ls_lossless.dcm", "693_J2KI.dcm", "J2K_pixelrep_mismatch.dcm"),
    ],
)
def test_pydicoms_own_files_look_as_pydicom_shows_them(name: str) -> None:
    path = get_testdata_file(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ds = dcmread(path)
        seen = apply_voi_lut(apply_modality_lut(ds.pixel_array, ds), ds).astype(np.float64)
    lowest, highest = (0, 2**ds.BitsStored - 1) if not ds.PixelRepresentation else (-(2 ** (ds.BitsStored - 1)),) * 2
    if ds.PixelRepresentation:
        highest = 2 ** (ds.BitsStored - 1) - 1
    slope, intercept = float(ds.get("RescaleSlope", 1)), float(ds.get("RescaleIntercept", 0))
    lowest, highest = lowest * slope + intercept, highest * slope + intercept
    np.testing.assert_allclose(read_pixels(path, modalities=None), (seen - lowest) / (highest - lowest), atol=2e-6)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real DICOM files are not on this machine")
def test_real_chest_radiographs_have_dark_lungs_beside_a_bright_spine() -> None:
    for name in ("pdd_RG1_J2KI.dcm", "xrv_1.2.276.0.7230010.3.1.4.8323329.6904.1517875201.850819.dcm"):
        image = read_pixels(REAL / name)
        rows, columns = image.shape
        band = image[int(0.35 * rows) : int(0.5 * rows)].mean(axis=0)
        spine = band[int(0.45 * columns) : int(0.55 * columns)].mean()
        lungs = (
            band[int(0.2 * columns) : int(0.35 * columns)].mean()
            + band[int(0.65 * columns) : int(0.8 * columns)].mean()
        ) / 2
        assert spine > lungs + 0.1, name
        assert read_header(REAL / name)["view"] == "frontal"
    assert refused(REAL / "pdd_RG3_J2KI.dcm") == "NOT_CHEST"


# --- refusals


@pytest.mark.parametrize("value", ["NaN", "nan", "inf", "-Infinity", "1e400", "1_0", "0x10", "abc", "1,5"])
@pytest.mark.parametrize("tag", ["RescaleSlope", "RescaleIntercept", "WindowCenter", "WindowWidth"])
def test_numbers_that_are_none_never_reach_a_pixel(tmp_path: Path, tag: str, value: str) -> None:
    tags = {"RescaleSlope": "1", "RescaleIntercept": "0", "WindowCenter": "7777", "WindowWidth": "7777"} | {
        tag: "8" * 7
    }
    path = write(tmp_path / "a", dataset(RAMP, **tags))
    raw = path.read_bytes()
    assert raw.count(b"8888888 ") == 1
    path.write_bytes(
        raw.replace(b"8888888 ", value.ljust(8)[:8].encode())
        if len(value) <= 8
        else raw.replace(b"8888888 ", b"inf     ")
    )
    assert refused(path) == "NONFINITE"


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ({"RescaleSlope": "0"}, "CONSTANT"),
        ({"RescaleSlope": "1e20"}, "BAD_RESCALE"),
        ({"RescaleSlope": "1e-20"}, "BAD_RESCALE"),
        ({"RescaleIntercept": "-1e30"}, "BAD_RESCALE"),
        ({"WindowCenter": 5, "WindowWidth": 0}, "BAD_WINDOW"),
        ({"WindowCenter": 5, "WindowWidth": -3}, "BAD_WINDOW"),
        ({"WindowCenter": 5, "WindowWidth": 0.5}, "BAD_WINDOW"),
        ({"WindowCenter": 5, "WindowWidth": 5, "VOILUTFunction": "CUBIC"}, "BAD_WINDOW"),
        ({"WindowCenter": 60000, "WindowWidth": 5}, "CONSTANT"),
        ({"NumberOfFrames": 2}, "MULTI_FRAME"),
        ({"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB"}, "COLOR"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "COLOR"),
        ({"PhotometricInterpretation": None}, "BAD_HEADER"),
        ({"Rows": 0}, "BAD_HEADER"),
        ({"Rows": None}, "BAD_HEADER"),
        ({"Rows": 17}, "TRUNCATED"),
        ({"Rows": 15}, "WRONG_LENGTH"),
        ({"Rows": 65535, "Columns": 65535}, "TOO_LARGE"),
        ({"BitsAllocated": 32}, "UNSUPPORTED"),
        ({"BitsStored": 17}, "BAD_HEADER"),
        ({"HighBit": 40}, "BAD_HEADER"),
        ({"PixelData": None}, "NO_PIXELS"),
    ],
)
def test_a_header_that_cannot_be_right_is_refused_with_a_reason(tmp_path: Path, tags: dict, reason: str) -> None:
    assert refused(write(tmp_path / "a", dataset(RAMP, **tags))) == reason


def test_a_flat_image_is_refused_rather_than_shown_black(tmp_path: Path) -> None:
    assert refused(write(tmp_path / "a", dataset(np.full((16, 16), 7, np.uint16)))) == "CONSTANT"


@pytest.mark.parametrize("table", [b"\0" * 100, b"\0" * 255])
def test_a_table_of_the_wrong_length_is_refused(tmp_path: Path, table: bytes) -> None:
    ds = dataset(RAMP)
    ds.VOILUTSequence = Sequence([lut([0] * 256, 0, 8)])
    ds.VOILUTSequence[0].add_new("LUTData", "OW", table + b"\0" * (len(table) % 2))
    ds.VOILUTSequence[0].LUTDescriptor = [999, 0, 8]
    assert refused(write(tmp_path / "a", ds)) == "BAD_LUT"


def test_a_deflated_bomb_is_refused_from_its_meta_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a", dataset(RAMP))
    raw = path.read_bytes()
    (length,) = struct.unpack("<I", raw[140:144])
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    body = packer.compress(b"\0" * 200_000_000) + packer.flush()
    head = raw[: 144 + length].replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.1.99")
    path.write_bytes(head[:140] + struct.pack("<I", length + 2) + head[144:])
    meta = bytearray(path.read_bytes())
    at = meta.find(b"1.2.840.10008.1.2.1.99")
    meta[at - 2 : at] = struct.pack("<H", 22)
    path.write_bytes(bytes(meta) + body)
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert refused(path) == "DEFLATED"
    with pytest.raises(Unreadable, match="DEFLATED"):
        read_header(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


@pytest.mark.parametrize("syntax", [None, RLELossless, JPEG2000Lossless, JPEGLosslessSV1, JPEGBaseline8Bit])
def test_no_truncation_of_a_file_is_accepted(tmp_path: Path, syntax: str | None) -> None:
    pixels = thorax(64, 48, bits=8).astype(np.uint8)
    ds = dataset(pixels, 8) if syntax is None else compressed(pixels, syntax, 8)
    whole = write(tmp_path / "a", ds).read_bytes()
    begin = whole.find(b"\xe0\x7f\x10\x00")
    ends = [*range(begin, len(whole) - 9, max(1, (len(whole) - begin) // 25)), 0, 1, 100, 131, 140, begin // 2]
    for end in ends:
        (tmp_path / "split").write_bytes(whole[:end])
        assert refused(tmp_path / "split") in REASONS, end


def test_a_frame_that_is_larger_than_the_header_says_is_never_decoded(tmp_path: Path) -> None:
    big = compressed(thorax(), JPEG2000Lossless, 12)
    big.Rows, big.Columns = 16, 16
    assert refused(write(tmp_path / "a", big)) == "MISMATCH"


def test_endless_nesting_is_one_refused_file(tmp_path: Path) -> None:
    head = write(tmp_path / "a", dataset(RAMP)).read_bytes()
    at = head.find(b"\x08\x00\x60\x00CS")
    opened = (b"\x28\x00\x10\x30SQ\x00\x00\xff\xff\xff\xff" + b"\xfe\xff\x00\xe0\xff\xff\xff\xff") * 3000
    (tmp_path / "b").write_bytes(head[:at] + opened + head[at:])
    assert refused(tmp_path / "b") in REASONS


def test_a_refusal_never_quotes_the_header(tmp_path: Path) -> None:
    for number, tags in enumerate(
        (
            {"RescaleSlope": "0"},
            {"Rows": 17},
            {"NumberOfFrames": 3},
            {"Modality": "CANARY"},
            {"BodyPartExamined": "DOE"},
        )
    ):
        path = write(tmp_path / f"{number}", dataset(RAMP, **tags))
        with pytest.raises(Unreadable) as caught:
            read_pixels(path)
        assert not any(word in str(caught.value) for word in ("CANARY", "Doe", "DOE", "1950"))
