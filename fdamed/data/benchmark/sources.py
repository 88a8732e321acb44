"""Readers of public sets without patients: samples, classes, the released test part."""

from __future__ import annotations

import gzip
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdamed.config.datasets import Domain
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.data.benchmark.samples import Samples, shifted
from fdamed.data.image import MAX_PIXELS, Unreadable
from fdamed.data.safe_paths import Roots

IMAGES = (".jpg", ".jpeg", ".png")
MNIST_M_SIDE = 32
BROKEN = (
    OSError, EOFError, ValueError, KeyError, SyntaxError, AttributeError, NotImplementedError, struct.error,
    zlib.error, zipfile.BadZipFile, Unreadable,
)  # fmt: skip


def read(domain: Domain, where: str, side: int = 224) -> Samples:
    """The samples of a set, image folders at `side` pixels; an error shows the first line of its reader's docstring."""
    try:
        samples = READERS[domain.kind](domain, side)
    except BROKEN as error:
        what = f"no set of kind `{domain.kind}` can be read ({error})"
        needed = str(READERS[domain.kind].__doc__).splitlines()[0]
        raise FdamedError(what, domain.root, f"Needed: {needed} Nothing is downloaded.") from None
    if len(samples.x) != len(samples.y) or len(samples.y) != len(samples.test) or not len(samples.y):
        what = f"{len(samples.x)} samples and {len(samples.y)} labels"
        raise FdamedError(what, where, "The files do not belong together.")
    if samples.y.min() < 0:
        raise FdamedError("a label is negative", where, "Number the classes from 0.")
    x = shifted(samples.x, domain.shift, where) if domain.shift else samples.x
    # A set that is colored, blended or shifted is made of the same files.
    origin = f"{'idx' if domain.kind in ('colored', 'blended') else domain.kind}:{Path(domain.root).resolve()}"
    return replace(samples, x=x, origin=origin)


def _released(parts: Iterable[tuple[NDArray[Any], NDArray[Any]]]) -> Samples:
    """The samples of a training and a test part, each x and y."""
    xs, ys = zip(*parts, strict=True)
    test = np.repeat([False, True], [len(y) for y in ys])
    return Samples(np.concatenate(xs), np.concatenate(ys).astype(np.int64), test)


def _idx(domain: Domain, side: int) -> Samples:
    """The four idx files of MNIST or Fashion-MNIST, plain or gzipped (Debian's package dataset-fashion-mnist)."""
    root = Path(domain.root)
    return _released((_array(root, f"{p}-images"), _array(root, f"{p}-labels")) for p in ("train", "t10k"))


def _array(root: Path, stem: str) -> NDArray[np.uint8]:
    path = _first(root, f"{stem}*")
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    _, code, rank = struct.unpack(">HBB", content[:4])
    if code != 8:
        raise ValueError(f"{path.name} does not contain bytes")
    shape = struct.unpack(f">{rank}I", content[4 : 4 + 4 * rank])
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


def _first(root: Path, pattern: str) -> Path:
    found = min((p for p in root.glob(pattern) if p.is_file()), default=None)
    if found is None:
        raise FileNotFoundError(f"there is no file {pattern}")
    return found


def _npz(domain: Domain, side: int) -> Samples:
    """One .npz file with x, y, x_test and y_test: images as uint8, or feature vectors."""
    with np.load(domain.root, allow_pickle=False) as content:
        found = _released([(content["x"], content["y"]), (content["x_test"], content["y_test"])])
    if found.x.ndim > 2 and found.x.dtype != np.uint8:
        raise ValueError("images are not whole numbers from 0 to 255")
    return found if found.x.ndim > 2 else replace(found, x=found.x.astype(np.float32))


def _digits(domain: Domain, side: int) -> Samples:
    """scikit-learn's 1,797 digits of 8 x 8 pixels with 17 gray levels; the last fifth is the test."""
    from sklearn.datasets import load_digits

    found = load_digits()
    n = len(found.target)
    x = np.round(found.images * (255 / 16)).astype(np.uint8)
    return Samples(x, found.target.astype(np.int64), np.arange(n) >= n - n // 5)


def _mat(domain: Domain, side: int) -> Samples:
    """*train*.mat and *test*.mat of SVHN or the synthetic digits, with X (S, S, 3, n) and y, 10 meaning 0."""
    from scipy.io import loadmat

    parts = [loadmat(_first(Path(domain.root), f"*{part}*.mat")) for part in ("train", "test")]
    return _released((np.moveaxis(p["X"], -1, 0).astype(np.uint8), p["y"].ravel().astype(int) % 10) for p in parts)


def _usps(domain: Domain, side: int) -> Samples:
    """USPS as one HDF5 file with train/data, train/target, test/data and test/target: 256 gray values in 0..1 each."""
    import h5py

    with h5py.File(domain.root, "r") as file:
        parts = [(_own(file, f"{part}/data"), _own(file, f"{part}/target")) for part in ("train", "test")]
    return _released((np.round(x * 255).astype(np.uint8).reshape(-1, 16, 16), y) for x, y in parts)


def _own(file: Any, path: str) -> NDArray[Any]:
    """A data set of an HDF5 file if its numbers are in the file itself: links and external storage name other files."""
    found = file[path]
    if found.file != file or found.external is not None or found.is_virtual:
        raise ValueError("numbers in another file")
    return np.asarray(found)


def _cifar10(domain: Domain, side: int) -> Samples:
    """The binary version of CIFAR-10 (cifar-10-batches-bin): a label and 3 x 32 x 32 bytes a sample."""
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    rows = np.concatenate([np.fromfile(Path(domain.root) / n, dtype=np.uint8).reshape(-1, 3073) for n in names])
    x = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Samples(np.ascontiguousarray(x), rows[:, 0].astype(np.int64), np.arange(len(rows)) >= 50_000)


def _colored(domain: Domain, side: int) -> Samples:
    """The four idx files of MNIST or Fashion-MNIST, for ColoredMNIST (Arjovsky et al.).

    Classes 0 to 4 against 5 to 9, a quarter of the labels turned round; red or green goes with the label in
    (1 + correlation) / 2 of the samples, at 14 x 14 like the original.
    """
    plain = _idx(domain, side)
    # "coloured" is the name of a random stream: another spelling would draw other images.
    rng = stream(0, "coloured", f"{domain.correlation:g}").numpy
    y = (plain.y >= 5) ^ (rng.random(len(plain)) < 0.25)
    red = y ^ (rng.random(len(plain)) >= (1 + domain.correlation) / 2)
    small = plain.x[:, ::2, ::2]
    x = np.zeros((*small.shape, 3), dtype=np.uint8)
    x[red, :, :, 0] = small[red]
    x[~red, :, :, 1] = small[~red]
    return Samples(x, y.astype(np.int64), plain.test)


def _blended(domain: Domain, side: int) -> Samples:
    """The four idx files of MNIST, for MNIST-M as Ganin and Lempitsky (2015) made it: |patch - digit| in color.

    Patches are cut at random places of scikit-learn's two photographs; theirs were of BSDS500. The test part is made of
    MNIST's test part. The same images at every reading.
    """
    from sklearn.datasets import load_sample_images

    plain, photographs = _idx(domain, side), load_sample_images().images
    rng, size = stream(0, "blended").numpy, plain.x.shape[1]
    which = rng.integers(len(photographs), size=len(plain))
    place = rng.random((len(plain), 2))
    x = np.empty((*plain.x.shape, 3), dtype=np.uint8)
    for row, digit in enumerate(plain.x):
        photograph = photographs[which[row]]
        top, left = (place[row] * (np.array(photograph.shape[:2]) - size + 1)).astype(int)
        patch = photograph[top : top + size, left : left + size].astype(np.int16)
        x[row] = np.abs(patch - digit[..., None])
    return replace(plain, x=x)


def _folder(domain: Domain, side: int) -> Samples:
    """One folder of JPEG or PNG files per class, as of VLCS or TerraIncognita; every fifth by hash is the test."""
    from fdamed.data.splitting.assignment import uniform_of

    root = Path(domain.root)
    classes = sorted(p.name for p in root.iterdir() if p.is_dir())
    files = [(f, c) for c, name in enumerate(classes) for f in sorted((root / name).rglob("*"))]
    files = [(f, c) for f, c in files if f.suffix.lower() in IMAGES]
    if not files:
        raise FileNotFoundError("there are no image files in class folders")
    x = _read_images([f for f, _ in files], side)
    names = np.array([str(f.relative_to(root)) for f, _ in files], dtype=object)
    return Samples(x, np.array([c for _, c in files]), uniform_of(names, "folder") < 0.2, tuple(classes))


def _mnist_m(domain: Domain, side: int) -> Samples:
    """mnist_m.tar.gz, unpacked: two folders and their lists of labels, lines such as `00000000.png 5`.

    Its test part is made from MNIST's, its training part from MNIST's training part: do not split MNIST again
    for training, or the target is tested on digits that the sources have seen.
    """
    parts = []
    for part in ("train", "test"):
        table = Path(domain.root) / f"mnist_m_{part}_labels.txt"
        rows = [line.split() for line in table.read_text(encoding="ascii").splitlines() if line.strip()]
        roots = Roots.of(Path(domain.root) / f"mnist_m_{part}")
        files = [roots.locate(name) for name, _ in rows]
        parts.append((_read_images(files, MNIST_M_SIDE), np.array([int(label) for _, label in rows])))
    return _released(parts)


def _read_images(files: list[Path], side: int) -> NDArray[np.uint8]:
    from PIL import Image as Images

    x = np.empty((len(files), side, side, 3), dtype=np.uint8)
    for row, file in enumerate(files):
        try:
            if not file.is_file():  # a pipe would be waited for
                raise FileNotFoundError
            with Images.open(file, formats=("JPEG", "PNG")) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise ValueError
                x[row] = np.asarray(image.convert("RGB").resize((side, side), Images.Resampling.BILINEAR))
        except (OSError, SyntaxError, ValueError, Images.DecompressionBombError):
            raise ValueError(f"not a readable image: {file.name}") from None
    return x


READERS: dict[str, Callable[[Domain, int], Samples]] = {
    "idx": _idx, "npz": _npz, "digits": _digits, "mat": _mat, "usps": _usps, "cifar10": _cifar10,
    "mnist_m": _mnist_m, "colored": _colored, "blended": _blended, "folder": _folder,
}  # fmt: skip
