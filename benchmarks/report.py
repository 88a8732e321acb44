"""The report of a study of 1,500 runs (20 methods, 5 targets, 15 seeds): seconds, memory, and how fast its page opens.

`python -m benchmarks.report` prints one JSON line. The runs are written, not trained; the audit is the real one. CPU
seconds stand beside those of the clock because they do not depend on what else the machine does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests"))

from tests.support.browser import CHROMIUM, browser  # noqa: E402
from tests.support.run_folders import CLIENTS, write_predictions, write_study  # noqa: E402

METHODS = (
    *("fedavg", "fedprox", "scaffold", "fedsr", "fedgtst", "fediir", "finetune", "finetune_offline", "finetune_head"),
    *("target_only", "gp", "fedgp", "fedgp_auto", "fedda", "fedda_auto", "kd3a", "fada", "fdann", "fdan", "oracle"),
)
SEEDS, ROUNDS, OPENED = 15, 20, 5
LOADED = "performance.timing.loadEventEnd - performance.timing.navigationStart"
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


def study(folder: Path) -> Path:
    """The study's files below `folder`; gives back its configuration."""
    cut = {"by": "condition", "clients": CLIENTS, "target": "each"}
    runs: dict[str, object] = {name: {} for name in METHODS} | {"scaffold": {"variate": "I"}}  # with Adam
    settings = {"runs": runs, "split": cut, "seeds": list(range(SEEDS)), "train": {"rounds": ROUNDS}}
    config = write_study(folder, **settings)
    for target in CLIENTS:
        for run in METHODS:
            for seed in range(SEEDS):
                write_predictions(config.parent, run, target, seed)
        fdamed("audit", config, "--target", target)
    return config


def fdamed(command: str, config: Path, *more: str) -> dict[str, float]:
    """Seconds of the clock and of the CPU, and the most memory, of one command."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "fdamed.cli.main", command, "--config", str(config), *more],
        env=os.environ | {"PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"fdamed {command} failed")
    cpu = used.ru_utime + used.ru_stime
    wall = time.perf_counter() - begin
    return {"wall_s": round(wall, 1), "cpu_s": round(cpu, 1), "peak_mb": round(used.ru_maxrss / 1024)}


def opened(page: Path) -> dict[str, float | None]:
    """Milliseconds until the page is loaded and until something is seen, and those of the CPU in the page's main
    thread: median of a few; None without Chromium."""
    if CHROMIUM is None:
        return {"load_ms": None, "paint_ms": None, "open_cpu_ms": None}
    loads, paints, spent = [], [], []
    with browser() as tab:
        tab.ask("Performance.enable", timeDomain="threadTicks")
        for _ in range(OPENED):
            tab.open(page)
            loads.append(float(tab.see(LOADED)))
            paints.append(float(tab.see(PAINTED) or 0))
            metrics = {m["name"]: float(m["value"]) for m in tab.ask("Performance.getMetrics")["metrics"]}
            spent.append(1000 * metrics["TaskDuration"])
        if tab.complaints:
            raise SystemExit(f"the page complains: {tab.complaints[:3]}")
    return {"load_ms": round(median(loads)), "paint_ms": round(median(paints)), "open_cpu_ms": round(median(spent))}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        config = study(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(name))
        made = fdamed("report", config)
        page = config.parent / "report" / "index.html"
        size = round(page.stat().st_size / 1e6, 2)
        result = {"benchmark": "report", "runs": len(METHODS) * len(CLIENTS) * SEEDS, "rounds": ROUNDS, **made}
        print(json.dumps(result | {"page_mb": size, **opened(page), "load": round(os.getloadavg()[0], 1)}))


if __name__ == "__main__":
    main()
