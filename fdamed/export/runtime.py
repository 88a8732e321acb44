"""An exported network in onnxruntime: scoring needs neither torch nor the seconds of its import."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

INPUT, OUTPUT = "image", "probability"
Floats = NDArray[np.float32]
Scorer = Callable[[Floats], Floats]
"""Input (B, ...) float32 -> probabilities (B, C)."""


def in_onnxruntime(path: Path, threads: int = 1) -> Scorer:
    """Probabilities by onnxruntime, on the CPU."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def score(x: Floats) -> Floats:
        out: Floats = session.run([OUTPUT], {INPUT: x})[0]
        return out

    return score
