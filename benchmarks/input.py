"""Images a second of the input path in one thread: gathered, made floats, augmented, noised, at 64, 224 and 320 pixels.

`python -m benchmarks.input [--gpu 4000] [--batches 8]` prints one JSON line. `--gpu`: images of 224 pixels that your
GPU trains in a second; each step's `feeds` = images a second / what this GPU would take at that size. A GPU gathers,
augments and noises by itself where its memory holds the images: then only `sent` is the host's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from fdamed.core.rng import stream
from fdamed.training.input import as_input, jitter, noisy

SIZES, BATCH = (64, 224, 320), 32
TYPICAL = 4000.0
"""Images of 224 pixels a second: ResNet-18 on a GPU of the A100 class trains some 2,500 to 5,000."""


def speed(step: Callable[[], object], batches: int) -> float:
    seconds = []
    for _ in range(batches + 1):
        begin = time.process_time()
        step()
        seconds.append(time.process_time() - begin)
    return BATCH / max(1e-9, statistics.median(seconds[1:]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", type=float, default=TYPICAL)
    parser.add_argument("--batches", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(1)
    out: dict[str, object] = {"benchmark": "input", "threads": 1, "gpu_images_per_s_at_224": given.gpu}
    for side in SIZES:
        images = torch.randint(0, 256, (512, side, side), dtype=torch.uint8)
        rows = torch.randperm(len(images))[:BATCH]
        pixels = images.index_select(0, rows)
        x, needed = as_input(pixels), given.gpu * (224 / side) ** 2
        steps: dict[str, Callable[[], object]] = {
            "sent": lambda images=images, rows=rows: images.index_select(0, rows),  # type: ignore[misc]
            "floats": lambda pixels=pixels: as_input(pixels),  # type: ignore[misc]
            "augmented": lambda x=x, rows=rows: jitter(x, rows, stream(0)),  # type: ignore[misc]
            "noised": lambda x=x, rows=rows: noisy(x, rows, 0.1, stream(0)),  # type: ignore[misc]
        }
        found = {name: speed(step, given.batches) for name, step in steps.items()}
        out[str(side)] = {name: {"images_per_s": round(v), "feeds": round(v / needed, 2)} for name, v in found.items()}
    print(json.dumps(out))


if __name__ == "__main__":
    main()
