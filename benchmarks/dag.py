"""How long Snakemake plans: a dry run of a study of 1,500 trainings (20 methods, 5 targets, 15 seeds), nothing on disk.

`python -m benchmarks.dag` prints one JSON line; `plain` is the study as it is, `batched` with batch_runs: 5.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
STUDY = f"""
study: dag
data: {{layout: chexpert, root: data/dag, salt: dag}}
phantom: {{patients: 200, size: 64, seed: 3}}
split:
  by: condition
  clients: {{a: Lung Lesion, b: Edema, c: Consolidation, d: Atelectasis, e: Cardiomegaly}}
  target: each
  where: view == 'frontal'
  per_class: 16
  labeled: 6
privacy: {{smallest_images: 1, smallest_steps: 1}}
seeds: {list(range(15))}
runs: {{gp: {{sweep: {{beta: {[i / 20 for i in range(20)]}}}}}}}
"""


def planned(folder: Path, study: str) -> dict[str, float]:
    """Seconds of one dry run, and how many jobs it found."""
    (folder / "study.yaml").write_text(study)
    command = ["snakemake", "--snakefile", str(REPO / "Snakefile"), "--directory", str(folder), "--cores", "2"]
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*command, "--configfile", str(folder / "study.yaml"), "-n", "--quiet", "rules"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = next(int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("total"))
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return {"jobs": total, "wall_s": round(time.perf_counter() - begin, 1), "cpu_s": round(cpu, 1)}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        plain = planned(Path(name), STUDY)
        batched = planned(Path(name), STUDY + "batch_runs: 5\n")
    load = round(os.getloadavg()[0], 1)
    print(json.dumps({"benchmark": "dag", "runs": 1500, "plain": plain, "batched": batched, "load": load}))


if __name__ == "__main__":
    main()
