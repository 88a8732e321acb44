"""Readers of public sets without patients: samples, classes, the released test part."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdamed.config.datasets import Domain
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.data.benchmark.image_folders import in_folders, mnist_m
from fdamed.data.benchmark.samples import Samples
from fdamed.data.benchmark.shift import shifted

FASHION = "Debian and Ubuntu have it as the package dataset-fashion-mnist (/usr/share/datasets/fashion-mnist)."
IDX: dict[int, np.dtype[Any]] = {
    0x08: np.dtype("u1"),
    0x09: np.dtype("i1"),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
}


def read(domain: Domain, where: str, side: int = 224) -> Samples:
    """The samples of a set, image folders at `side` pixels; raises FdamedError if it cannot be read."""
    samples = in_folders(domain, side) if domain.kind == "folder" else READERS[domain.kind](domain)
    if len(samples.x) != len(samples.y) or len(samples.y) != len(samples.test) or not len(samples.y):
        raise FdamedError(
            f"{len(samples.x)} samples and {len(samples.y)} labels", where, "The files do not belong together."
        )
    if samples.y.min() < 0:
        raise FdamedError("a label lies below 0", where, "Number the classes from 0 on.")
    x = shifted(samples.x, domain.shift, where) if domain.shift else samples.x
    return replace(samples, x=x, origin=_origin(domain))


def _origin(domain: Domain) -> str:
    """The files of a set: one that is colored or shifted is made of the same."""
    return f"{'idx' if domain.kind == 'colored' else domain.kind}:{Path(domain.root).resolve()}"


def _idx(domain: Domain) -> Samples:
    """MNIST's format (LeCun), plain or gzipped: train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-..."""
    root = Path(domain.root)
    parts = [(_array(root, f"{p}-images"), _array(root, f"{p}-labels")) for p in ("train", "t10k")]
    return Samples(
        np.concatenate([x for x, _ in parts]),
        np.concatenate([y for _, y in parts]).astype(np.int64),
        np.repeat([False, True], [len(y) for _, y in parts]),
    )


def _array(root: Path, stem: str) -> NDArray[Any]:
    found = sorted(p for p in root.glob(f"{stem}*") if p.is_file()) if root.is_dir() else []
    if not found:
        fix = f"Put the four idx files of MNIST or Fashion-MNIST there. {FASHION} Nothing is downloaded."
        raise FdamedError(f"there is no file {stem}-idx*-ubyte[.gz]", str(root), fix)
    path = found[0]
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        _, code, rank = struct.unpack(">HBB", content[:4])
        shape = struct.unpack(f">{rank}I", content[4 : 4 + 4 * rank])
        values: NDArray[Any] = np.frombuffer(content, IDX[code], offset=4 + 4 * rank)
        return values.reshape(shape)
    except (OSError, EOFError, struct.error, KeyError, ValueError):
        raise FdamedError("not an idx file, or cut short", str(path), "Copy it again.") from None


def _npz(domain: Domain) -> Samples:
    """x, y, x_test, y_test in one .npz: images uint8 or feature vectors."""
    path = Path(domain.root)
    try:
        with np.load(path, allow_pickle=False) as content:
            arrays = {k: content[k] for k in ("x", "y", "x_test", "y_test")}
    except (OSError, ValueError, KeyError):
        raise FdamedError(
            "not an .npz file with x, y, x_test and y_test", str(path), "Save them with numpy.savez."
        ) from None
    x = np.concatenate([arrays["x"], arrays["x_test"]])
    if x.ndim > 2 and x.dtype != np.uint8:
        raise FdamedError("images are not whole numbers from 0 to 255", str(path), "Save x and x_test as uint8.")
    return Samples(
        x if x.ndim > 2 else x.astype(np.float32),
        np.concatenate([arrays["y"], arrays["y_test"]]).astype(np.int64),
        np.repeat([False, True], [len(arrays["y"]), len(arrays["y_test"])]),
    )


def _digits(domain: Domain) -> Samples:
    """scikit-learn's 1,797 digits of 8 x 8 pixels with 17 gray levels; the last fifth is the test."""
    from sklearn.datasets import load_digits

    found = load_digits()
    n = len(found.target)
    return Samples(
        np.round(found.images * (255 / 16)).astype(np.uint8),
        found.target.astype(np.int64),
        np.arange(n) >= n - n // 5,
    )


def _mat(domain: Domain) -> Samples:
    """SVHN and the synthetic digits: *train*.mat and *test*.mat with X (S, S, 3, n) and y, 10 meaning 0."""
    from scipy.io import loadmat

    xs, ys = [], []
    for part in ("train", "test"):
        found = sorted(Path(domain.root).glob(f"*{part}*.mat"))
        if not found:
            fix = "Put the cropped digits of SVHN (train_32x32.mat, test_32x32.mat) there. Nothing is downloaded."
            raise FdamedError(f"there is no *{part}*.mat", domain.root, fix)
        try:
            content = loadmat(found[0])
            xs.append(np.moveaxis(content["X"], -1, 0).astype(np.uint8))
            ys.append(content["y"].ravel().astype(np.int64) % 10)
        except (NotImplementedError, ValueError, KeyError, OSError):
            raise FdamedError("not a .mat file with X and y", str(found[0]), "Copy it again.") from None
    return Samples(np.concatenate(xs), np.concatenate(ys), np.repeat([False, True], [len(y) for y in ys]))


def _usps(domain: Domain) -> Samples:
    """USPS as one HDF5 file with train/data, train/target, test/data, test/target: 256 gray values in 0..1 a digit."""
    import h5py

    xs, ys = [], []
    try:
        with h5py.File(domain.root, "r") as file:
            for part in ("train", "test"):
                xs.append(np.round(_own(file, f"{part}/data") * 255).astype(np.uint8).reshape(-1, 16, 16))
                ys.append(_own(file, f"{part}/target").astype(np.int64))
    except (OSError, KeyError, ValueError, AttributeError):
        fix = "Give the HDF5 file with train/data, train/target, test/data and test/target. Nothing is downloaded."
        raise FdamedError("there is no USPS file, or it is another one", domain.root, fix) from None
    return Samples(np.concatenate(xs), np.concatenate(ys), np.repeat([False, True], [len(y) for y in ys]))


def _own(file: Any, path: str) -> NDArray[Any]:
    """A data set of an HDF5 file if its numbers are in the file itself: links and external storage name other files."""
    import h5py

    place = file
    for step in path.split("/"):
        if isinstance(place.get(step, getlink=True), h5py.ExternalLink):
            raise ValueError("a link to another file")
        place = place[step]
    if place.external is not None or place.is_virtual:
        raise ValueError("numbers in another file")
    return np.asarray(place)


def _cifar10(domain: Domain) -> Samples:
    """CIFAR-10, the binary version: data_batch_1.bin ... test_batch.bin, a label and 3 x 32 x 32 bytes a sample."""
    root, parts = Path(domain.root), []
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        if not (root / name).is_file():
            fix = "Put the binary version of CIFAR-10 (cifar-10-batches-bin) there. Nothing is downloaded."
            raise FdamedError(f"there is no {name}", str(root), fix)
        content = np.fromfile(root / name, dtype=np.uint8)
        if len(content) % 3073:
            raise FdamedError("not CIFAR-10's binary format, or cut short", str(root / name), "Copy it again.")
        parts.append(content.reshape(-1, 3073))
    rows = np.concatenate(parts)
    x = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Samples(np.ascontiguousarray(x), rows[:, 0].astype(np.int64), np.arange(len(rows)) >= 50_000)


def _colored(domain: Domain) -> Samples:
    """ColoredMNIST (Arjovsky et al.): two classes, a quarter of the labels turned round, red or green by the label.

    Classes 0 to 4 against 5 to 9; the color goes with the label in (1 + correlation) / 2 of the samples. It is made
    from any idx set, Fashion-MNIST too, at 14 x 14 like the original.
    """
    plain = _idx(domain)
    rng = stream(0, "coloured", f"{domain.correlation:g}").numpy
    y = (plain.y >= 5) ^ (rng.random(len(plain)) < 0.25)
    red = y ^ (rng.random(len(plain)) >= (1 + domain.correlation) / 2)
    small = plain.x[:, ::2, ::2]
    x = np.zeros((*small.shape, 3), dtype=np.uint8)
    x[red, :, :, 0] = small[red]
    x[~red, :, :, 1] = small[~red]
    return Samples(x, y.astype(np.int64), plain.test)


READERS: dict[str, Callable[[Domain], Samples]] = {
    "idx": _idx,
    "npz": _npz,
    "digits": _digits,
    "mat": _mat,
    "usps": _usps,
    "cifar10": _cifar10,
    "mnist_m": mnist_m,
    "colored": _colored,
}


def fitted(samples: Samples, side: int, channels: int) -> Samples:
    """The images at `side` pixels with `channels` channels; feature vectors stay as they are."""
    x = samples.x
    if x.ndim == 2:
        return samples
    if x.ndim == 4 and channels == 1:
        x = np.concatenate([_gray(x[i : i + 4096]) for i in range(0, len(x), 4096)])
    if x.ndim == 3 and channels == 3:
        x = np.repeat(x[..., None], 3, axis=-1)
    if x.shape[1] != side:
        x = _resized(x, side)
    return replace(samples, x=np.ascontiguousarray(x))


def numbered_alike(sets: dict[str, Samples]) -> dict[str, Samples]:
    """The sets with one numbering of their class names: a set that lacks a class does not shift the others."""
    everybody = sorted({name for s in sets.values() for name in s.names})
    place = {name: i for i, name in enumerate(everybody)}
    return {
        key: replace(s, y=np.array([place[n] for n in s.names], dtype=np.int64)[s.y], names=tuple(everybody))
        if s.names
        else s
        for key, s in sets.items()
    }


def _gray(x: NDArray[Any]) -> NDArray[np.uint8]:
    """Luma of (n, S, S, 3)."""
    return np.round(x @ np.array([0.299, 0.587, 0.114], dtype=np.float32)).astype(np.uint8)


def _resized(x: NDArray[Any], side: int) -> NDArray[np.uint8]:
    import torch
    from torch.nn.functional import interpolate

    out = np.empty((len(x), side, side, *x.shape[3:]), dtype=np.uint8)
    for start in range(0, len(x), 4096):
        part = torch.from_numpy(x[start : start + 4096]).float()
        planes = part.unsqueeze(1) if part.ndim == 3 else part.permute(0, 3, 1, 2)
        new = interpolate(planes, size=(side, side), mode="bilinear", antialias=True, align_corners=False)
        new = new.round_().clamp_(0, 255).to(torch.uint8)
        out[start : start + 4096] = (new.squeeze(1) if x.ndim == 3 else new.permute(0, 2, 3, 1)).numpy()
    return out
