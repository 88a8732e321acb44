"""A short part of `make test-gpu`, in a process of its own: the pretended GPU breaks functorch for all that follows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
SHORT = "test_pretended_gpu or (gp and not fedgp and (no-heads or plain or augmented))"


def test_plain_training_on_a_pretended_gpu_never_waits_and_gives_the_bits_of_the_cpu() -> None:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "gpu", "-k", SHORT, "tests/gpu"]
    done = subprocess.run(command, cwd=PROJECT, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
