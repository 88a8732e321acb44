"""Files and messages made to do harm: nothing in them is executed, and each is refused with a reason (F6)."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from fdamed.cli.main import main
from fdamed.config.datasets import Domain
from fdamed.core.errors import FdamedError
from fdamed.data import loader
from fdamed.data.benchmark import sources as benchmark
from fdamed.federation.messages import (
    Count,
    Features,
    Individual,
    Scalar,
    Statistic,
    Update,
    Weights,
    WireError,
    decode,
    encode,
    message,
    pack,
    unpack,
)
from fdamed.federation.storage.checkpoint import Checkpoints
from fdamed.federation.storage.client_state import read_state
from fdamed.federation.transport.endpoint import handle_request
from fdamed.methods.fedavg import FedAvg
from fdamed.models.backbone import read_weights
from fdamed.pipeline.paths import tensors_in
from tests.support import federation as hospitals


class Canary:
    """Makes a folder where somebody unpickles it."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, (str(self.place),))


def pickled(place: Path) -> bytes:
    return pickle.dumps({"layer1.0.conv1.weight": Canary(place)})


def torch_saved(place: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save({"layer1.0.conv1.weight": Canary(place)}, buffer)
    return buffer.getvalue()


def torch_saved_as_before(place: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save([Canary(place)], buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def exported(place: Path) -> bytes:
    """A .pt2 archive: a zip with pickles where torch.export looks for weights and constants."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in (
            ("archive_format", b"pt2"),
            ("version", b"1"),
            ("data/weights/weights.pt", torch_saved(place)),
            ("data/constants/constants.pt", torch_saved(place)),
            ("data.pkl", pickled(place)),
        ):
            archive.writestr(f"evil/{name}", content)
    return buffer.getvalue()


def objects(place: Path) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Canary(place)], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def zipped_objects(place: Path) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **dict.fromkeys(("x", "y", "x_test", "y_test"), np.array([Canary(place)], dtype=object)))
    return buffer.getvalue()


def oversized_header(place: Path) -> bytes:
    return struct.pack("<Q", 1 << 62) + b"{}" + pickled(place)


def overlapping_tensors(place: Path) -> bytes:
    head = {n: {"dtype": "F32", "shape": [1 << 60], "data_offsets": [0, 4]} for n in ("a", "b")}
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * 4


def no_tensors(place: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save({"layer1.0.conv1.weight": 5, "layer2": "words"}, buffer)
    return buffer.getvalue()


def cut_short(place: Path) -> bytes:
    return save({"x": torch.zeros(64)})[:-7]


EVIL: list[Callable[[Path], bytes]] = [
    pickled,
    torch_saved,
    torch_saved_as_before,
    exported,
    objects,
    zipped_objects,
    oversized_header,
    overlapping_tensors,
    no_tensors,
    cut_short,
]


@pytest.mark.parametrize("evil", EVIL, ids=lambda f: f.__name__)
def test_a_file_that_would_execute_code_is_refused_wherever_it_is_given(
    evil: Callable[[Path], bytes], tmp_path: Path
) -> None:
    sang = tmp_path / "sang"
    content = evil(sang)
    readers: dict[str, Callable[[Path], object]] = {
        "weights.pth": read_weights,
        "weights.safetensors": read_weights,
        "weights.pt2": read_weights,
        "theta.safetensors": lambda p: tensors_in(p, "federate"),
        "memory.safetensors": read_state,
        "set.npz": lambda p: benchmark.read(Domain(kind="npz", root=str(p)), "data"),
    }
    for name, reader in readers.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(FdamedError) as refused:
            reader(path)
        assert str(path) in refused.value.where, name
    (tmp_path / "images.npy").write_bytes(content)
    (tmp_path / "order.parquet").write_bytes(content)
    with pytest.raises(FdamedError):
        loader.load(tmp_path, ("train",))
    assert not sang.exists()


def test_the_canary_sings_where_a_file_is_unpickled(tmp_path: Path) -> None:
    pickle.loads(pickled(tmp_path / "sang"))
    assert (tmp_path / "sang").is_dir()


def test_pretrained_weights_that_are_no_numbers_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = {
        "study": "demo",
        "results": str(tmp_path / "results"),
        "data": {"layout": "chexpert", "root": "x"},
        "split": {"by": "condition", "clients": {"a": "Edema", "b": "Pneumonia"}, "target": "a"},
        "model": {"weights": str(tmp_path / "w.safetensors")},
        "runs": {"fedavg": {}},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = ["init", "--config", str(tmp_path / "config.json"), "--seed", "0"]
    save_file({"layer1.0.conv1.weight": torch.full((64, 64, 3, 3), torch.nan)}, tmp_path / "w.safetensors")
    assert main(command) == 2
    assert "not finite" in capfd.readouterr().err
    (tmp_path / "w.safetensors").write_bytes(pickled(tmp_path / "sang"))
    assert main(command) == 2
    assert "not a file of tensors" in capfd.readouterr().err
    assert not (tmp_path / "sang").exists() and not (tmp_path / "results").exists()


# --- checkpoints with a right checksum ---


def head(**changes: object) -> bytes:
    good = {"fingerprint": {"threads": 1}, "round": 3, "log": {"size": 0, "crc32": 0}, "memories": {}, "behind": []}
    return json.dumps(good | changes).encode()


def state() -> bytes:
    from fdamed.federation.method import Model

    return encode(Model(x=hospitals.theta()))


def framed(head: bytes, state: bytes) -> bytes:
    return struct.pack("<I", len(head)) + head + state


TRICKS: dict[str, Callable[[Path], bytes]] = {
    "a pickle": pickled,
    "a head without end": lambda p: struct.pack("<I", 1 << 31) + b"{}",
    "a head that is a list": lambda p: framed(b"[]", state()),
    "a head of brackets": lambda p: framed(b"[" * 100_000, state()),
    "no fingerprint": lambda p: framed(b"{}", state()),
    "a fingerprint that is a number": lambda p: framed(head(fingerprint=3), state()),
    "a memory above the folder": lambda p: framed(head(memories={"../../outside": 1}), state()),
    "a memory by path": lambda p: framed(head(memories={"east": "../../outside"}), state()),
    "a mark that is a list": lambda p: framed(head(log=[]), state()),
    "a pickled state": lambda p: framed(head(), pickled(p)),
    "another state": lambda p: framed(head(), state()[:-4]),
}


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS.keys())
def test_a_checkpoint_of_somebody_else_is_passed_over(
    trick: Callable[[Path], bytes], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import hashlib

    content = trick(tmp_path / "sang")
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "checkpoint.bin").write_bytes(hashlib.sha256(content).digest() + content)
    keeper = Checkpoints(folder, lambda p, r: folder / p / f"{r}.safetensors", {"threads": 1})
    assert keeper.load(FedAvg(), hospitals.in_process()) is None
    assert "trying the one before" in capfd.readouterr().err
    assert not (tmp_path / "sang").exists()


def test_an_honest_checkpoint_of_the_same_shape_is_taken(tmp_path: Path) -> None:
    import hashlib

    content = framed(head(), state())
    (tmp_path / "checkpoint.bin").write_bytes(hashlib.sha256(content).digest() + content)
    keeper = Checkpoints(tmp_path, lambda p, r: tmp_path / p / f"{r}.safetensors", {"threads": 1})
    found = keeper.load(FedAvg(), hospitals.in_process())
    assert found is not None and found[0] == 3


# --- messages ---


@message
class Everything:
    x: Weights
    g: Update
    s: Statistic
    f: Features
    i: Individual
    n: Count
    loss: Scalar


ALL = Everything(
    x=torch.arange(3.0),
    g=torch.ones(3),
    s=torch.rand(2, 2, dtype=torch.float64),
    f=torch.zeros(0, 4),
    i=torch.rand(2, 3),
    n=-7,
    loss=0.5,
)
GOOD = encode(ALL)
HEADER = json.loads(GOOD[8 : 8 + struct.unpack("<I", GOOD[4:8])[0]])
BODY = GOOD[8 + struct.unpack("<I", GOOD[4:8])[0] :]


def answer(data: bytes) -> Everything | None:
    try:
        return decode(Everything, data, 3)
    except WireError:
        return None


def test_what_was_sent_comes_back_bit_by_bit() -> None:
    back = answer(GOOD)
    assert back is not None and encode(back) == GOOD


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(GOOD)))
def test_changed_bytes_are_refused_or_a_message_of_the_same_form(changes: list[tuple[int, int]], end: int) -> None:
    data = bytearray(GOOD)
    for place, value in changes:
        data[place] = value
    back = answer(bytes(data[:end] if end % 3 == 0 else data))
    if back is not None:
        again = answer(encode(back))
        assert again is not None and encode(again) == encode(back)
        assert (back.x.shape, back.g.shape, back.i.shape[1]) == ((3,), (3,), 3)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("float32"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
SHAPES = st.lists(
    st.sampled_from([0, 1, 2, 3, True, -1, 2**31, 2**32, 2**62, 2**63, 2**64, 2**200, 1.0, "3"]), max_size=70
)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 6), st.sampled_from(["name", "kind", "dtype", "shape"]), JSON | SHAPES)
@example(2, "shape", [0, 2**31, 2**31])
def test_a_changed_header_is_refused_or_fits_the_bytes(field: int, key: str, value: object) -> None:
    changed = json.loads(json.dumps(HEADER))
    changed["fields"][field][key] = value
    text = json.dumps(changed).encode()
    back = answer(b"FDM1" + struct.pack("<I", len(text)) + text + BODY)
    if back is not None:
        assert encode(back)[-8:] == GOOD[-8:] and back.x.numel() == back.g.numel() == 3


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300) | JSON.map(lambda v: json.dumps(v).encode()) | st.just(b"[" * 200_000))
def test_any_bytes_are_refused(header: bytes) -> None:
    assert answer(header) is None
    assert answer(b"FDM1" + struct.pack("<I", len(header)) + header + BODY) is None


NORTH = hospitals.hospital("north")


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=100)
    | JSON.map(lambda v: pack(v, BODY))
    | st.fixed_dictionaries({"step": st.just("train_locally") | JSON, "round": JSON, "nth": JSON}).map(
        lambda h: pack(h, b"x")
    )
)
def test_a_hospital_answers_any_request_with_a_refusal(request_bytes: bytes) -> None:
    reply, body = unpack(handle_request(NORTH, "fedavg", request_bytes))
    assert reply["ok"] is False and len(reply["error"]) == 3 and len(body) == 0
