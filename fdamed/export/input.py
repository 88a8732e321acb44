"""Input of an exported model: finds, decodes and preprocesses files exactly as the training cache does."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdamed.core.errors import FdamedError
from fdamed.data.image import MAX_BYTES, MAX_PIXELS, VERSION, Unreadable, read_gray, read_header
from fdamed.data.worker_pool import run_isolated


@dataclass(frozen=True)
class Preparation:
    """The preprocessing; `views`: those seen in training, empty if unknown."""

    size: int
    equalize: bool
    views: tuple[str, ...] = ()

    def described(self) -> dict[str, Any]:
        """Every step as JSON, for other programs; `read` parses it."""
        from fdamed.data.dicom.header import CHEST, MODALITIES
        from fdamed.data.image import TAILS

        limits = {"largest_pixels": MAX_PIXELS, "largest_bytes": MAX_BYTES, "frames": 1}
        header = {"modalities": list(MODALITIES), "body_parts": list(CHEST), "views": list(self.views)}
        steps: list[dict[str, Any]] = [
            {"step": "decode", "formats": ["dicom", "jpeg", "png"], "channels": "one gray", **limits, **header},
            {"step": "rescale", "by": "DICOM PS3.3 C.11.1: modality LUT, or rescale slope and intercept"},
            {"step": "window", "by": "DICOM PS3.3 C.11.2: VOI LUT, or the first window; 8-bit images: 0 to 255"}
            | {"without": "these percentiles of the pixels that are not padding", "percentiles": list(TAILS)},
            {"step": "invert", "when": "MONOCHROME1"},
            {"step": "resize", "longer_side": self.size, "shrink": "area", "grow": "bilinear"},
            *([{"step": "equalize", "bins": 256}] if self.equalize else []),
            {"step": "pad", "to": [self.size, self.size], "value": 0.0, "place": "center"},
            {"step": "round", "levels": 256},
            {"step": "divide", "by": 255},
        ]
        return {"version": VERSION, "size": self.size, "equalize": self.equalize, "steps": steps}

    @classmethod
    def read(cls, content: dict[str, Any], where: str) -> Preparation:
        """The preprocessing of a model.json, if this installation does exactly the same."""
        try:
            views = tuple(content["steps"][0]["views"])
            found = cls(int(content["size"]), bool(content["equalize"]), views)
        except (KeyError, IndexError, TypeError, ValueError):
            raise FdamedError("the preprocessing cannot be read", where, "Export the model again.") from None
        if found.described() != content:
            fix = "Use the version of fdamed that `versions` in this file names, or export the model again."
            raise FdamedError("this installation preprocesses images differently than the training did", where, fix)
        return found


def listed(given: Sequence[str]) -> list[str]:
    """The files of folders (recursively), patterns and names, each once; sorted, without hidden files."""
    return list(dict.fromkeys(name for word in given for name in _one(word)))


def _one(word: str) -> Iterator[str]:
    if os.path.isdir(word):  # noqa: PTH112  (names stay as they were written)
        for folder, below, files in os.walk(word):
            below[:] = sorted(name for name in below if not name.startswith("."))
            yield from (os.path.join(folder, name) for name in sorted(files) if not name.startswith("."))  # noqa: PTH118
    elif not os.path.lexists(word) and glob.has_magic(word):
        found = sorted(glob.glob(word, recursive=True))  # noqa: PTH207
        for name in found:
            yield from _one(name)
        if not found:
            yield word
    else:
        yield word


def prepared(
    files: Sequence[str], preparation: Preparation, workers: int, seconds: float = 30.0
) -> Iterator[NDArray[np.uint8] | Unreadable]:
    """For each file, in order, its (size, size) image or the reason why not; decoded in processes that may crash."""
    work = partial(prepare, preparation=preparation)
    for _, result in run_isolated(files, work, workers, seconds):
        yield result


def prepare(path: str, preparation: Preparation) -> NDArray[np.uint8]:
    """In a worker: one file's image."""
    from fdamed.data.transforms import transform

    view = read_header(path).get("view") if preparation.views else None
    if view and view not in preparation.views:
        raise Unreadable("OTHER_VIEW", f"the header says {view}; trained on: {', '.join(preparation.views)}")
    return transform(read_gray(path), preparation.size, preparation.equalize)
