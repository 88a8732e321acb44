"""Where the seconds of the demo go, with and without remembered answers (docs/reference/files.md, `answers/`).

`python -m benchmarks.demo` runs the stages of config/config.yaml one after the other, each in its own process, and
prints one JSON line without and one with remembered answers (CPU and wall-clock seconds by stage), and one with their
ratio. Training is run twice, in two copies of the study; the stages before and after it only once. The default is one
seed; `--rounds` and `--runs` make it smaller.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from fdamed.config.loader import load
from fdamed.config.study import Config
from fdamed.core.files import read_lines
from fdamed.pipeline.selection import batches

BECOME_PARENT_OF_ORPHANS = 36
"""Linux: PR_SET_CHILD_SUBREAPER."""
BEFORE = {"phantom": "phantom", "prepare": "ingest + split + cache + leakage", "init": "init"}
"""Stage -> its commands, up to the training."""
Seconds = dict[str, tuple[float, float]]
"""Stage -> CPU and wall-clock seconds."""


def timed(study: Path, seconds: Seconds, stage: str, commands: str) -> None:
    """Run commands in a process of their own and add what it took to their stage."""
    used, begin = _children(), time.perf_counter()
    command, environment = (
        [sys.executable, "-m", "fdamed.cli.main", *commands.split()],
        os.environ | {"FDAMED_CONFIG": str(study)},
    )
    subprocess.run(command, check=True, capture_output=True, env=environment)
    with suppress(ChildProcessError):
        while True:  # decoding processes end after the command that started them
            os.wait()
    cpu, wall = seconds.get(stage, (0.0, 0.0))
    seconds[stage] = cpu + _children() - used, wall + time.perf_counter() - begin


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def federate(study: Path, config: Config, seconds: Seconds) -> None:
    """All runs, in the batches of the workflow."""
    for seed in config.seeds:
        for target in config.split.targets:
            for batch in batches(config):
                runs = " ".join(f"{run}/{target}/{seed}" for run in batch)
                timed(study, seconds, "federate", f"federate --runs {runs}")


def analyze(study: Path, config: Config, seconds: Seconds) -> None:
    """What the workflow does with trained runs."""
    for target in config.split.targets:
        chain = f"evaluate --target {target} --client {target} + audit --target {target} + attributes --target {target}"
        timed(study, seconds, "analyze", chain)
    timed(study, seconds, "membership", "membership")
    timed(study, seconds, "report", "report")


def line(answers: bool, seconds: Seconds, remembered: int) -> dict[str, Any]:
    return {
        "benchmark": "demo",
        "answers": answers,
        "remembered": remembered,
        "cpu_s": round(sum(cpu for cpu, _ in seconds.values()), 1),
        "wall_s": round(sum(wall for _, wall in seconds.values()), 1),
        "stages": {name: {"cpu_s": round(cpu, 1), "wall_s": round(wall, 1)} for name, (cpu, wall) in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("config/config.yaml"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, default=0, help="default: those of the configuration")
    parser.add_argument("--runs", nargs="+", default=None, help="default: all of the configuration")
    parser.add_argument("--train-only", action="store_true", help="without the stages after training")
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(BECOME_PARENT_OF_ORPHANS, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        raw = yaml.safe_load(given.config.read_text()) | {"seeds": given.seeds, "advise": False}
        raw["runs"] = {run: raw["runs"][run] for run in given.runs or raw["runs"]}
        raw["data"]["root"] = str(folder / "raw")
        raw["train"] |= {"rounds": given.rounds} if given.rounds else {}
        studies = {}
        for answers in (False, True):
            studies[answers] = folder / f"{answers}.yaml"
            own = {"results": str(folder / str(answers))} | ({} if answers else {"answers_mb": 0})
            studies[answers].write_text(yaml.safe_dump(raw | own))
        config = load(studies[False])
        before: Seconds = {}
        for stage, commands in BEFORE.items():
            timed(studies[False], before, stage, commands)
        shutil.copytree(folder / "False", folder / "True")
        spent: dict[bool, Seconds] = {False: dict(before), True: dict(before)}
        after: Seconds = {}
        for answers, study in studies.items():
            federate(study, config, spent[answers])
        if not given.train_only:
            analyze(studies[True], config, after)
        timing = [t for p in (folder / "True").rglob("runs/*/*/*/timing.jsonl") for t in read_lines(p)]
        done = [{p.parts[-4:]: p.read_text() for p in (folder / str(a)).rglob("runs/*/*/*/done")} for a in studies]
        figures = [
            line(answers, spent[answers] | after, sum(t.get("remembered", 0) for t in timing) if answers else 0)
            for answers in studies
        ]
    for figure in figures:
        print(json.dumps(figure))
    without, remembering = figures
    training = [figure["stages"]["federate"]["cpu_s"] for figure in figures]
    ratios = {
        "ratio_cpu": round(remembering["cpu_s"] / without["cpu_s"], 3),
        "ratio_cpu_federate": round(training[1] / training[0], 3),
        "ratio_wall": round(remembering["wall_s"] / without["wall_s"], 3),
        "same_weights": done[0] == done[1],
    }
    print(json.dumps({"benchmark": "demo", **ratios}))


if __name__ == "__main__":
    main()
