"""What a process sets for itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

PREDICT = """
import resource, torch
from fdamed.core.environment import keep_memory
if {kept}: keep_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(2_000_000) for _ in range(20)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
sum(faults() for _ in range(5))
print(sum(faults() for _ in range(5)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_memory_that_tensors_free_is_used_again_without_page_faults() -> None:
    default, kept = (
        int(subprocess.check_output([sys.executable, "-c", PREDICT.format(kept=kept)])) for kept in (False, True)
    )
    if not default:
        pytest.skip("the allocator keeps such blocks by itself here")
    assert kept < default / 3, (kept, default)
