"""Score new DICOM, JPEG and PNG files with an exported model.

Files are named as given; nothing of a header but the view is printed.

Examples:
    fdamed predict --model edema_model new/image.dcm more_images/ > scores.csv
    fdamed predict --model edema_model 'archive/**/*.dcm' --json --out scores.json
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import logging
import sys
from collections import Counter
from typing import Any

import numpy as np

from fdamed.cli.options import workers_of
from fdamed.core.disclosure import formula_safe
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic
from fdamed.core.progress import track
from fdamed.data.image import Unreadable
from fdamed.export.bundle import Exported, read_exported
from fdamed.export.input import listed, prepared

log = logging.getLogger(__name__)
GROUP = "use the model", 2
PRIVATE = True
OPTIONS = {
    "--model": {"required": True, "type": "path", "metavar": "FOLDER", "help": "what `fdamed export` wrote"},
    "images": {
        "nargs": "+",
        "metavar": "IMAGE",
        "help": "files, folders (with their subfolders) or patterns such as 'a/**/*.dcm'",
    },
    "--out": {"type": "path", "metavar": "FILE", "help": "write here instead of to standard output"},
    "--json": "",
    "--workers": "",
}
BATCH = 64
Result = dict[str, Any]
"""One file: its probability by class and its call, or the reason why there are none."""


def run(arguments: argparse.Namespace) -> None:
    workers = workers_of(arguments)
    exported = read_exported(arguments.model)
    files, where = listed(arguments.images), ", ".join(arguments.images)
    if not files:
        raise FdamedError("no file was found", where, "Name images or folders.")
    runtime, results = scored(exported, files, workers)
    text = as_json(exported, runtime, results) if arguments.json else as_csv(exported, results)
    content = text.encode("utf-8", "surrogateescape")  # a file's name goes out with the bytes that it has
    if arguments.out:
        with atomic(arguments.out) as draft:
            draft.write_bytes(content)
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
    refused = Counter(line["reason"] for line in results if "reason" in line)
    reasons = "".join(f", {reason} {n}" for reason, n in refused.most_common())
    done = len(results) - refused.total()
    log.info(f"{done} of {len(results)} files scored with {runtime}{reasons}")
    if not done:
        fix = "Give DICOM (CR, DX), JPEG or PNG files of single gray chest radiographs; each file's reason is listed."
        raise FdamedError(f"none of the {len(results)} files could be scored", where, fix)


def scored(exported: Exported, files: list[str], workers: int) -> tuple[str, list[Result]]:
    """The runtime that computed the probabilities, and every file's result, in the order given."""
    preparation = exported.preparation()
    runtime, score = exported.scorer(workers)
    results: list[Result] = [{"file": file} for file in files]
    read = zip(results, track(prepared(files, preparation, workers), "images", len(files)), strict=True)
    while batch := list(itertools.islice(read, BATCH)):
        images = []
        for result, image in batch:
            if isinstance(image, Unreadable):
                result |= {"reason": image.reason, "detail": image.detail}
            else:
                images.append((result, image))
        if images:
            found = score(np.stack([image for _, image in images])[:, None].astype(np.float32) / np.float32(255))
            for (result, _), p in zip(images, found.tolist(), strict=True):
                result |= {"probability": p, "call": call(exported, p)}
    return runtime, results


def call(exported: Exported, p: list[float]) -> str:
    """The predicted class: positive from the threshold on, or the most probable one."""
    if exported.threshold is not None:
        return exported.classes[int(p[1] >= exported.threshold)]
    return exported.classes[int(np.argmax(p))]


def as_csv(exported: Exported, results: list[Result]) -> str:
    """file, score (of the positive class, or of each class), call, reason, detail."""
    two = exported.threshold is not None
    scores = ["score"] if two else [f"score_{i}" for i in range(len(exported.classes))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["file", *scores, "call", "reason", "detail"])
    for line in results:
        p = line.get("probability", [])
        cells = [f"{value:.6f}" for value in (p[1:] if two else p)] or [""] * len(scores)
        writer.writerow([formula_safe(line["file"]), *cells, *(line.get(k, "") for k in ("call", "reason", "detail"))])
    return out.getvalue()


def as_json(exported: Exported, runtime: str, results: list[Result]) -> str:
    about = {"classes": exported.classes, "threshold": exported.threshold, "runtime": runtime}
    return json.dumps(about | {"images": results}, indent=1) + "\n"
