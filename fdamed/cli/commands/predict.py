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
import json
import logging
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fdamed.cli.options import workers_of
from fdamed.core.disclosure import formula_safe
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic
from fdamed.export.bundle import Exported, read_exported

log = logging.getLogger(__name__)
GROUP = "use the model", 2
PRIVATE = True
OPTIONS = {
    "--model": {"required": True, "type": "path", "metavar": "FOLDER", "help": "what `fdamed export` wrote"},
    "images": {
        "nargs": "+",
        "metavar": "IMAGE",
        "help": "files, folders (all that is below them) or patterns such as 'a/**/*.dcm'",
    },
    "--out": {"type": "path", "metavar": "FILE", "help": "write here instead of to standard output"},
    "--json": "",
    "--runtime": {
        "choices": ("auto", "onnxruntime", "torch"),
        "default": "auto",
        "help": "default: onnxruntime where it is installed",
    },
    "--workers": "",
}
BATCH = 64


@dataclass
class Result:
    """The probabilities of one file by class, or the reason why there are none."""

    file: str
    probabilities: list[float] = field(default_factory=list)
    reason: str = ""
    detail: str = ""


def run(arguments: argparse.Namespace) -> None:
    from fdamed.export.input import listed

    workers = workers_of(arguments)
    exported = read_exported(arguments.model)
    files = listed(arguments.images)
    if not files:
        raise FdamedError("there is no file in what was given", ", ".join(arguments.images), "Name images or folders.")
    runtime, results = scored(exported, files, arguments.runtime, workers)
    text = as_json(exported, runtime, results) if arguments.json else as_csv(exported, results)
    content = text.encode("utf-8", "surrogateescape")  # a file's name goes out with the bytes that it has
    if arguments.out:
        with atomic(arguments.out) as draft:
            draft.write_bytes(content)
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
    refused = Counter(line.reason for line in results if line.reason)
    reasons = "".join(f", {reason} {n}" for reason, n in refused.most_common())
    done = len(results) - refused.total()
    log.info(f"{done} of {len(results)} files scored with {runtime}{reasons}")
    if not done:
        fix = "Give DICOM (CR, DX), JPEG or PNG files of single gray chest radiographs; each file's reason is listed."
        raise FdamedError(f"none of the {len(results)} files could be scored", ", ".join(arguments.images), fix)


def scored(exported: Exported, files: list[str], runtime: str, workers: int) -> tuple[str, list[Result]]:
    """Every file with its probabilities or its refusal, in the order given, and what computed them."""
    import numpy as np

    from fdamed.core.progress import track
    from fdamed.export.input import batched, prepared

    preparation = exported.preparation()
    name, score = exported.scorer(runtime, workers)
    results = [Result(file) for file in files]
    images = track(prepared(files, preparation, workers), "images", len(files))
    for places, pixels, refused in batched(images, BATCH):
        for place, refusal in refused.items():
            results[place].reason, results[place].detail = refusal.reason, refusal.detail
        if places:
            found = score(pixels[:, None].astype(np.float32) / np.float32(255))
            for place, probabilities in zip(places, found.tolist(), strict=True):
                results[place].probabilities = probabilities
    return name, results


def as_csv(exported: Exported, results: list[Result]) -> str:
    """file, score (of the positive class, or of each class), call, reason, detail."""
    two = exported.threshold is not None
    scores = ["score"] if two else [f"score_{i}" for i in range(len(exported.classes))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["file", *scores, "call", "reason", "detail"])
    for line in results:
        cells = [f"{p:.6f}" for p in (line.probabilities[1:] if two else line.probabilities)] or [""] * len(scores)
        writer.writerow([formula_safe(line.file), *cells, call(exported, line), line.reason, line.detail])
    return out.getvalue()


def as_json(exported: Exported, runtime: str, results: list[Result]) -> str:
    lines = [
        {"file": t.file, "probability": t.probabilities, "call": call(exported, t)}
        if t.probabilities
        else {"file": t.file, "reason": t.reason, "detail": t.detail}
        for t in results
    ]
    content: dict[str, Any] = {
        "classes": exported.classes,
        "threshold": exported.threshold,
        "runtime": runtime,
        "images": lines,
    }
    return json.dumps(content, indent=1) + "\n"


def call(exported: Exported, line: Result) -> str:
    """The predicted class: positive from the threshold on, or the most probable one."""
    if not line.probabilities:
        return ""
    if exported.threshold is not None:
        return exported.classes[int(line.probabilities[1] >= exported.threshold)]
    return exported.classes[max(range(len(line.probabilities)), key=line.probabilities.__getitem__)]
