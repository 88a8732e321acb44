"""KD3A's vote, qualities of all subsets and Shapley values for 10,000 samples and 6 teachers.

`python -m benchmarks.kd3a_vote` prints one JSON line; `vote_ms` is all three together, median of the repeats.
"""

from __future__ import annotations

import json
import statistics
import time

import torch

from fdamed.core.rng import stream
from fdamed.methods.kd3a.consensus import all_subsets, qualities, shapley, vote

SAMPLES, TEACHERS, CLASSES, GATE = 10_000, 6, 2, 0.9
REPEATS = 15


def main() -> None:
    generator = stream(0, "vote").torch
    q = torch.softmax(4 * torch.randn(TEACHERS, SAMPLES, CLASSES, generator=generator), dim=2)

    def work() -> torch.Tensor:
        vote(q, GATE)
        return shapley(qualities(q, GATE, all_subsets(TEACHERS)))

    work()
    spent = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        spent.append(1000 * (time.perf_counter() - begin))
    print(
        json.dumps(
            {
                "benchmark": "vote",
                "vote_ms": round(statistics.median(spent), 2),
                "fastest_ms": round(min(spent), 2),
                "samples": SAMPLES,
                "teachers": TEACHERS,
                "classes": CLASSES,
                "threads": torch.get_num_threads(),
            }
        )
    )


if __name__ == "__main__":
    main()
