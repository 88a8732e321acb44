"""Public sets that come as image files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fdamed.config.datasets import Domain
from fdamed.core.errors import FdamedError
from fdamed.data.benchmark.samples import Samples
from fdamed.data.gray_image import MAX_PIXELS, Unreadable
from fdamed.data.safe_paths import Roots

MNIST_M_SIDE = 32


def in_folders(domain: Domain, side: int) -> Samples:
    """VLCS, TerraIncognita and the like: one folder a class with image files; every fifth by hash is the test."""
    from fdamed.data.splitting.assignment import uniform_of

    root = Path(domain.root)
    classes = sorted(p.name for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
    endings = {".jpg", ".jpeg", ".png"}
    files = [(f, c) for c, name in enumerate(classes) for f in sorted((root / name).rglob("*"))]
    files = [(f, c) for f, c in files if f.suffix.lower() in endings]
    if not files:
        raise FdamedError("there are no image files in class folders", str(root), "Unpack the set there.")
    x = np.empty((len(files), side, side, 3), dtype=np.uint8)
    for row, (file, _) in enumerate(files):
        x[row] = _read_image(file, side)
    names = np.array([str(f.relative_to(root)) for f, _ in files], dtype=object)
    return Samples(x, np.array([c for _, c in files]), uniform_of(names, "folder") < 0.2, tuple(classes))


def mnist_m(domain: Domain) -> Samples:
    """MNIST-M as released: mnist_m_train/ and mnist_m_test/ with mnist_m_train_labels.txt and ..._test_labels.txt.

    Its test part is made from MNIST's, its training part from MNIST's training part: do not split MNIST again
    for training, or the target is tested on digits that the sources have seen.
    """
    root, files, labels, counts = Path(domain.root), [], [], []
    for part in ("train", "test"):
        table = root / f"mnist_m_{part}_labels.txt"
        try:
            rows = [line.split() for line in table.read_text(encoding="ascii").splitlines() if line.strip()]
            labels += [int(label) for _, label in rows]
        except (OSError, UnicodeDecodeError, ValueError):
            fix = "Unpack mnist_m.tar.gz there: lines such as `00000000.png 5`. Nothing is downloaded."
            raise FdamedError("not MNIST-M's list of labels", str(table), fix) from None
        folder = Roots.of(root / f"mnist_m_{part}")
        try:
            found = [folder.locate(name) for name, _ in rows]
        except Unreadable as refused:
            what = f"a name in the list is no file of mnist_m_{part}/ ({refused.reason})"
            raise FdamedError(what, str(table), "Unpack mnist_m.tar.gz again.") from None
        files += found
        counts.append(len(rows))
    x = np.empty((len(files), MNIST_M_SIDE, MNIST_M_SIDE, 3), dtype=np.uint8)
    for row, file in enumerate(files):
        x[row] = _read_image(file, MNIST_M_SIDE)
    return Samples(x, np.array(labels, dtype=np.int64), np.repeat([False, True], counts))


def _read_image(file: Path, side: int) -> NDArray[np.uint8]:
    from PIL import Image as Images

    try:
        if not file.is_file():  # a pipe would be waited for
            raise FileNotFoundError
        with Images.open(file, formats=("JPEG", "PNG")) as image:
            if image.width * image.height > MAX_PIXELS:
                raise FdamedError("an image with more pixels than any camera has", str(file), "Remove it.")
            return np.asarray(image.convert("RGB").resize((side, side), Images.Resampling.BILINEAR))
    except (OSError, SyntaxError, ValueError, Images.DecompressionBombError):
        raise FdamedError("not a readable image", str(file), "Copy it again, or remove it.") from None
