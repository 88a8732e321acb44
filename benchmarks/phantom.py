"""`python -m benchmarks.phantom`: images a second, from numbers to files on disk, and CPU time of each image.

On a busy machine the rate falls and the CPU time does not: `rate_2_cores` is what two free cores would give.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path

from fdamed.config.datasets import Phantom
from fdamed.data.phantom import write


def cpu_seconds() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in both)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layout", default="chexpert", choices=("chexpert", "mimic", "midrc"))
    parser.add_argument("--patients", type=int, default=800)
    parser.add_argument("--size", type=int, default=320)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
        before, begin = cpu_seconds(), time.perf_counter()
        write(Phantom(patients=arguments.patients, size=arguments.size), arguments.layout, root)
        seconds, cpu = time.perf_counter() - begin, cpu_seconds() - before
        images = sum(1 for p in root.rglob("*") if p.suffix in (".jpg", ".dcm"))
    result = {
        "benchmark": "phantom",
        "layout": arguments.layout,
        "size": arguments.size,
        "images": images,
        "seconds": round(seconds, 2),
        "images_per_second": round(images / seconds, 1),
        "cpu_ms_per_image": round(1000 * cpu / images, 2),
        "rate_2_cores": round(2 * images / cpu, 1),
        "cores": len(os.sched_getaffinity(0)),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
