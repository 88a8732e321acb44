"""The gp rule on ResNet-18-sized vectors against the memory traffic that it cannot avoid.

Lower bound: a plain sum over the N + 1 vectors (the inner products must read them once) and a copy of as many bytes as
the combination moves (N + 1 reads and one write). `python -m benchmarks.gp` prints one JSON line; ratio = rule / floor.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import time
from collections.abc import Callable

import torch

from fdamed.config.study import Model
from fdamed.models.backbone import build
from fdamed.models.flat import layout_of
from fdamed.ops.aggregation import gp

SOURCES = 4
REPEATS = 15


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    torch.set_num_threads(os.cpu_count() or 1)
    layout = layout_of(build(Model()))
    generator = torch.Generator().manual_seed(0)
    g_t = torch.randn(layout.size, generator=generator)
    g_s = torch.randn(SOURCES, layout.size, generator=generator) + 0.2 * g_t
    align = [0.1, 0.2, 0.3, 0.4]
    traffic = (SOURCES + 2) * layout.size // 2  # a copy reads and writes each number
    source, sink = torch.randn(traffic, generator=generator), torch.empty(traffic)

    def floor() -> None:
        g_s.sum()
        g_t.sum()
        sink.copy_(source)

    def rule() -> torch.Tensor:
        return gp(g_t, g_s, layout, 0.5, [1, 2, 3, 4], align)

    sink.zero_(), floor(), rule()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pairs = [(seconds(floor), seconds(rule)) for _ in range(REPEATS)]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    floor_ms, rule_ms = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        json.dumps(
            {
                "benchmark": "gp",
                "rule_ms": round(rule_ms, 2),
                "floor_ms": round(floor_ms, 2),
                "ratio": round(rule_ms / floor_ms, 3),
                "extra_kb": grown,
                "threads": torch.get_num_threads(),
                "sources": SOURCES,
                "numbers": layout.size,
            }
        )
    )


if __name__ == "__main__":
    main()
