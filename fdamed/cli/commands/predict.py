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
from pathlib import Path
from typing import Any

from fdamed.cli.options import add_json, add_workers, workers_of
from fdamed.core.disclosure import formula_safe
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic
from fdamed.export.bundle import RUNTIMES, Exported, read_exported

log = logging.getLogger(__name__)
GROUP = "use the model", 2
PRIVATE = True
BATCH = 64


@dataclass
class Told:
    """One line of the answer: probabilities by class, or why there are none."""

    file: str
    chances: list[float] = field(default_factory=list)
    reason: str = ""
    detail: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, type=Path, metavar="FOLDER", help="what `fdamed export` wrote")
    parser.add_argument(
        "images",
        nargs="+",
        metavar="IMAGE",
        help="files, folders (all that is below them) or patterns such as 'a/**/*.dcm'",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write here instead of to standard output")
    add_json(parser)
    parser.add_argument(
        "--runtime", choices=RUNTIMES, default="auto", help="default: onnxruntime where it is installed"
    )
    add_workers(parser)


def run(arguments: argparse.Namespace) -> None:
    from fdamed.export.input import listed

    workers = workers_of(arguments)
    exported = read_exported(arguments.model)
    files = listed(arguments.images)
    if not files:
        raise FdamedError("there is no file in what was given", ", ".join(arguments.images), "Name images or folders.")
    runtime, told = scored(exported, files, arguments.runtime, workers)
    text = as_json(exported, runtime, told) if arguments.json else as_csv(exported, told)
    content = text.encode("utf-8", "surrogateescape")  # a file's name goes out with the bytes that it has
    if arguments.out:
        with atomic(arguments.out) as draft:
            draft.write_bytes(content)
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
    refused = Counter(line.reason for line in told if line.reason)
    reasons = "".join(f", {reason} {n}" for reason, n in refused.most_common())
    done = len(told) - refused.total()
    log.info(f"{done} of {len(told)} files scored with {runtime}{reasons}")
    if not done:
        fix = "Give DICOM (CR, DX), JPEG or PNG files of single gray chest radiographs; each file's reason is listed."
        raise FdamedError(f"none of the {len(told)} files could be scored", ", ".join(arguments.images), fix)


def scored(exported: Exported, files: list[str], runtime: str, workers: int) -> tuple[str, list[Told]]:
    """Every file with its probabilities or its refusal, in the order given, and what computed them."""
    import numpy as np

    from fdamed.core.progress import track
    from fdamed.export.input import batched, prepared

    preparation = exported.preparation()
    name, score = exported.scorer(runtime, workers)
    told = [Told(file) for file in files]
    images = track(prepared(files, preparation, workers), "images", len(files))
    for places, pixels, refused in batched(images, BATCH):
        for place, refusal in refused.items():
            told[place].reason, told[place].detail = refusal.reason, refusal.detail
        if places:
            found = score(pixels[:, None].astype(np.float32) / np.float32(255))
            for place, chances in zip(places, found.tolist(), strict=True):
                told[place].chances = chances
    return name, told


def as_csv(exported: Exported, told: list[Told]) -> str:
    """file, score (of the positive class, or of each class), call, reason, detail."""
    two = exported.threshold is not None
    scores = ["score"] if two else [f"score_{i}" for i in range(len(exported.classes))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["file", *scores, "call", "reason", "detail"])
    for line in told:
        cells = [f"{p:.6f}" for p in (line.chances[1:] if two else line.chances)] or [""] * len(scores)
        writer.writerow([formula_safe(line.file), *cells, call(exported, line), line.reason, line.detail])
    return out.getvalue()


def as_json(exported: Exported, runtime: str, told: list[Told]) -> str:
    lines = [
        {"file": t.file, "probability": t.chances, "call": call(exported, t)}
        if t.chances
        else {"file": t.file, "reason": t.reason, "detail": t.detail}
        for t in told
    ]
    content: dict[str, Any] = {
        "classes": exported.classes,
        "threshold": exported.threshold,
        "runtime": runtime,
        "images": lines,
    }
    return json.dumps(content, indent=1) + "\n"


def call(exported: Exported, line: Told) -> str:
    """The class that the model tells: the positive one from the threshold on, or the most probable."""
    if not line.chances:
        return ""
    if exported.threshold is not None:
        return exported.classes[int(line.chances[1] >= exported.threshold)]
    return exported.classes[max(range(len(line.chances)), key=line.chances.__getitem__)]
