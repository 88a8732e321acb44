"""10,000 bootstrap replicates of the AUC, and of all nine scores, on 5,000 patients; and the plain loop beside them.

`python -m benchmarks.bootstrap` prints one JSON line: seconds and CPU seconds of ours, and the ratio to a loop that
copies the drawn images and asks scikit-learn for the AUC (timed on fewer replicates, in the same run).
"""

from __future__ import annotations

import json
import time

import numpy as np
from sklearn.metrics import roc_auc_score

from fdamed.core.rng import stream
from fdamed.evaluation.bootstrap import bootstrap

PATIENTS, REPLICATES, LOOPED = 5_000, 10_000, 200


def main() -> None:
    rng = stream(0, "bootstrap", "data").numpy
    y = rng.integers(0, 2, PATIENTS)
    p = 1 / (1 + np.exp(-(y - 0.5 + rng.normal(size=PATIENTS))))
    owner = np.arange(PATIENTS)
    bootstrap(y, p, owner, stream(0, "warm"), 10)
    began, used = time.perf_counter(), time.process_time()
    found = bootstrap(y, p, owner, stream(0, "bootstrap"), REPLICATES)
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    draws = stream(1, "loop").numpy
    used = time.process_time()
    areas = []
    for _ in range(LOOPED):
        drawn = draws.integers(0, PATIENTS, PATIENTS)
        areas.append(roc_auc_score(y[drawn], p[drawn]))
    loop = (time.process_time() - used) / LOOPED * REPLICATES
    ends = found["intervals"]["auc"]
    print(
        json.dumps(
            {
                "benchmark": "bootstrap",
                "seconds": round(seconds, 2),
                "cpu_seconds": round(cpu, 2),
                "loop_cpu_seconds": round(loop, 1),
                "ratio": round(loop / cpu, 1),
                "patients": PATIENTS,
                "replicates": REPLICATES,
                "scores": len(found["intervals"]),
                "auc": [round(e, 4) for e in ends] if ends else None,
                "loop_auc": [round(float(e), 4) for e in np.quantile(areas, [0.025, 0.975])],
            }
        )
    )


if __name__ == "__main__":
    main()
