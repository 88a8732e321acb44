"""What a training job costs before its first step: from the start of the process to the first optimizer step.

`python -m benchmarks.startup` prints one JSON line: wall and CPU seconds, the best of a few starts (the others waited
for a busy machine), beside a bare `import torch`, and which heavy libraries were imported on the way; then, for every
command of the workflow, the CPU seconds of its imports and the heavy libraries among them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

STUDY = """
study: start
data: {layout: chexpert, root: data/start, salt: start}
phantom: {patients: 150, size: 64, seed: 3}
split:
  by: condition
  clients: {lesion: Lung Lesion, edema: Edema, consolidation: Consolidation}
  target: edema
  where: view == 'frontal'
  per_class: 16
  labeled: 6
  val: 0.15
  test: 0.3
image: {size: 64}
privacy: {smallest_cell: 1, smallest_images: 1, smallest_steps: 1}
train: {rounds: 1, device: cpu}
seeds: [0]
runs: {gp: {}}
"""
HEAVY = ("torch", "pandas", "sklearn", "scipy", "monai", "mlflow", "matplotlib", "pydicom", "PIL")
REPEATS = 5
MEASURED = f"""
import json, os, sys, time
def measure(*_):
    born = int(open("/proc/self/stat").read().split()[21]) / os.sysconf("SC_CLK_TCK")
    wall = time.clock_gettime(time.CLOCK_BOOTTIME) - born
    heavy = [m for m in {HEAVY!r} if m in sys.modules]
    print(json.dumps([wall, time.process_time(), heavy]), flush=True)
    os._exit(0)
"""
JOB = f"""{MEASURED}
import fdamed.training.optimizer
from fdamed.cli.main import main
fdamed.training.optimizer.Optimizer.step = measure
main("federate --config start.yaml --run gp --target edema --seed 0".split())
"""
COMMANDS = ("phantom", "ingest", "split", "cache", "leakage", "init", "federate", "evaluate", "features",
            "fit_classical", "advise", "audit", "attributes", "membership", "report", "track")  # fmt: skip
BARE = f"{MEASURED}\nimport torch\nmeasure()\n"


def timed(code: str, folder: Path, repeats: int = REPEATS) -> tuple[float, float, list[str]]:
    """(wall, CPU, heavy modules) of the start with the least CPU."""
    starts = []
    for _ in range(repeats):
        run = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
        starts.append(json.loads(run.stdout.splitlines()[-1]))
    wall, cpu, heavy = min(starts, key=lambda s: s[1])
    return min(wall, *(s[0] for s in starts)), cpu, heavy


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "start.yaml").write_text(STUDY)
        stages = ["phantom", "ingest", "split", *(f"cache --client {p}" for p in ("lesion", "edema", "consolidation"))]
        for stage in [*stages, "leakage", "init --seed 0"]:
            words = [sys.executable, "-m", "fdamed.cli.main", *stage.split(), "--config", "start.yaml"]
            subprocess.run(words, cwd=folder, capture_output=True, check=True)
        bare_wall, bare_cpu, _ = timed(BARE, folder)
        wall, cpu, heavy = timed(JOB, folder)
        imports = {}
        for command in COMMANDS:
            code = f"{MEASURED}\nimport fdamed.cli.main, fdamed.cli.commands.{command}\nmeasure()\n"
            imports[command] = timed(code, folder, 2)[1:]
    figures = {
        "benchmark": "startup",
        "wall_s": round(wall, 2),
        "cpu_s": round(cpu, 2),
        "import_torch_wall_s": round(bare_wall, 2),
        "import_torch_cpu_s": round(bare_cpu, 2),
        "heavy": heavy,
        "imports": {name: [round(seconds, 2), *found] for name, (seconds, found) in imports.items()},
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
