"""Files to the image cache against `cores` x one bare process that only decodes and resizes with the same libraries.

`python -m benchmarks.ingest [--files N] [--kinds ...]` prints one JSON line. Both sides are timed from the moment their
libraries are imported, in turns, and the best of each counts. `ratio_side_by_side` compares with `cores` bare processes
running at once, which share memory and caches as the workers do; `ratio_cpu` compares CPU seconds a file, which busy
neighbors disturb least. Peak memory is that of a worker, for n and 3n files.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fdamed.config.model import Image
from fdamed.data.cache import Task, build, place, reserve
from fdamed.data.datasets.nih import Nih
from fdamed.data.worker_pool import run_isolated

SIDE = 2000
SIZE = 224
KINDS = {"dicom": 1.0, "dicom_jpeg_lossless": 0.25, "jpeg": 1.0}
"""Kind of file -> share of `--files` that is enough of it: JPEG lossless takes ten times as long."""


def bare(path: str) -> int:
    """What any script would do: pydicom or Pillow, float, MONAI's Resize, uint8."""
    import torch
    from monai.data.meta_obj import set_track_meta
    from monai.transforms.spatial.array import Resize

    set_track_meta(False)
    with open(path, "rb") as file:
        head = file.read(132)
    if head[128:] == b"DICM":
        import pydicom

        pixels = pydicom.dcmread(path).pixel_array
    else:
        from PIL import Image

        pixels = np.asarray(Image.open(path, formats=("JPEG", "PNG")))
    picture = torch.from_numpy(pixels.astype(np.float32))[None]
    small = Resize((SIZE, SIZE), mode="area")(picture)
    top = float(small.max())
    return int((small[0] * (255 / top)).to(torch.uint8).numpy().sum())


def decode_all(paths: list[str]) -> tuple[float, float]:
    """In a process of its own: seconds and CPU seconds that `bare` takes for all files, libraries warm."""
    bare(paths[0])
    begin, used = time.perf_counter(), time.process_time()
    for path in paths:
        bare(path)
    return time.perf_counter() - begin, time.process_time() - used


def cached(task: Task, draft: str) -> tuple[float, int]:
    """In a worker: the real work; its CPU seconds and the worker's peak memory in kB so far."""
    used = time.process_time()
    place(task, draft=draft, image=Image(size=SIZE))
    return time.process_time() - used, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def through_the_cache(paths: list[str], folder: Path, workers: int) -> tuple[float, float, int]:
    """Seconds and CPU seconds (this process's too) for all files, workers warm; a worker's peak memory in kB."""
    draft = folder / "draft.npy"
    warm = workers * 8
    reserve(draft, len(paths) + warm, SIZE)
    tasks = [(row, path) for row, path in enumerate(paths[:1] * warm + paths)]
    peak, cpu = 0, 0.0
    begin = own = 0.0
    work = partial(cached, draft=str(draft))
    for done, (_, result) in enumerate(run_isolated(tasks, work, workers), start=1):
        if not isinstance(result, tuple):
            raise SystemExit(f"a benchmark file was refused: {result}")
        peak = max(peak, result[1])
        if done > warm:
            cpu += result[0]
        elif done == warm:
            begin, own = time.perf_counter(), time.process_time()
        last, end = time.perf_counter(), time.process_time()
    return last - begin, cpu + end - own, peak


def make_files(folder: Path, kind: str, count: int) -> list[str]:
    """`count` files of one kind: three different images, linked to many names."""
    from scipy.ndimage import zoom

    rng = np.random.default_rng(0)
    made = []
    for number in range(3):
        shape = zoom(rng.random((12, 12)), SIDE / 12, order=3)
        image = np.clip((0.1 + 0.8 * shape + 0.01 * rng.standard_normal(shape.shape)) * 4095, 0, 4095).astype(np.uint16)
        path = folder / f"{kind}{number}"
        if kind == "jpeg":
            from PIL.Image import fromarray

            fromarray((image >> 4).astype(np.uint8)).save(path, "JPEG", quality=90)
        else:
            from pydicom.uid import JPEGLosslessSV1

            from tests.support.dicom_files import compressed, dataset, write

            window: dict[str, Any] = {"WindowCenter": 2048, "WindowWidth": 4096}
            lossless = kind == "dicom_jpeg_lossless"
            write(path, compressed(image, JPEGLosslessSV1, **window) if lossless else dataset(image, **window))
        made.append(path)
    names = []
    for number in range(count):
        name = folder / f"{kind}-{number:05}"
        os.link(made[number % 3], name)
        names.append(str(name))
    return names


def bare_processes(paths: list[str], count: int) -> tuple[float, float]:
    """Files a second of `count` bare processes at once, and CPU seconds a file."""
    results = [r for _, r in run_isolated([paths] * count, decode_all, count, 3600) if isinstance(r, tuple)]
    return sum(len(paths) / seconds for seconds, _ in results), sum(cpu for _, cpu in results) / (count * len(paths))


def measure(kind: str, files: int, cores: int, turns: int, folder: Path) -> dict[str, Any]:
    paths = make_files(folder, kind, files)
    alone, together, ours = [], [], []
    for _ in range(turns):
        alone.append(bare_processes(paths, 1))
        seconds, cpu, _ = through_the_cache(paths, folder, cores)
        ours.append((files / seconds, cpu / files))
        together.append(bare_processes(paths, cores))
    rates = [max(rate for rate, _ in side) for side in (alone, together, ours)]
    return {
        "bare_per_second": round(rates[0], 1),
        "bare_side_by_side": round(rates[1], 1),
        "cache_per_second": round(rates[2], 1),
        "ratio": round(rates[2] / (cores * rates[0]), 3),
        "ratio_side_by_side": round(rates[2] / rates[1], 3),
        "ratio_cpu": round(min(cpu for _, cpu in alone) / min(cpu for _, cpu in ours), 3),
    }


def peak_memory(files: int, cores: int, folder: Path) -> dict[str, float]:
    """Peak of a worker (MB) for n and 3n files, and what the calling process gained by building 3n instead of n."""
    out: dict[str, float] = {}
    for name, count in (("n", files), ("3n", 3 * files)):
        sub = folder / name
        sub.mkdir()
        paths = make_files(sub, "dicom", count)
        out[f"worker_mb_{name}"] = round(through_the_cache(paths, sub, cores)[2] / 1024, 1)
        rows = pd.DataFrame({"image": [Path(p).name for p in paths], "y": np.arange(count) % 2, "split": "train"})
        data = Nih(layout="nih", root=str(sub), reject_share=0.0)
        build(rows, sub / "o", data, Image(size=SIZE), cores)
        out[f"parent_mb_{name}"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
        shutil.rmtree(sub)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=240)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    options = parser.parse_args()
    result: dict[str, Any] = {"benchmark": "ingest", "cores": options.cores, "files": options.files}
    with tempfile.TemporaryDirectory() as name:
        for kind in options.kinds:
            folder = Path(name) / kind
            folder.mkdir()
            result[kind] = measure(kind, int(options.files * KINDS[kind]), options.cores, options.turns, folder)
            shutil.rmtree(folder)
        memory = Path(name) / "memory"
        memory.mkdir()
        result["memory"] = peak_memory(max(30, options.files // 6), options.cores, memory)
    result["ratio"] = min(result[kind]["ratio"] for kind in options.kinds)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
