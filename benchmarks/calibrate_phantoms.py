"""Both ends of a phantom study for a grid of knobs: FedAvg and Oracle, on seeds of their own, and no row in between.

`python -m benchmarks.calibrate_phantoms config/chexpert_phantom.yaml --knobs subtlety=0.6,0.8 concept=1 scanner=1,2`
runs every combination on seeds 100 to 104 (the phantom's seed, too) with the study's own commands, one point after the
other. Finished points are lines of `--out` and are not run again; `--show` prints the table and runs nothing.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.phantom import cpu_seconds
from fdamed.cli.main import main as fdamed
from fdamed.config.loader import parse, read
from fdamed.core.files import digest

PUBLISHED = {"chexpert": (54, 82), "mimic": (76, 76), "midrc": (52, 88)}
"""Layout -> AUC (%) of FedAvg and Oracle in the healthcare paper's Table 2."""
CLOSE = 4.0
"""Points of AUC between a calibrated end and the published one."""
ENDS: dict[str, dict[str, Any]] = {"fedavg": {}, "oracle": {}}
KEPT = ("data", "phantom", "split", "image", "privacy", "model", "train")
"""Sections that decide a point's numbers."""


SHOWN = ("subtlety", "concept", "scanner", "noise", "label_noise", "correlation", "rounds")


def point(raw: dict[str, Any], knobs: dict[str, Any], seed: int, rounds: int | None) -> dict[str, Any]:
    """The study of one setting and seed."""
    study = {name: copy.deepcopy(raw[name]) for name in KEPT if name in raw}
    study |= {"study": "calibration", "seeds": [seed], "batch_runs": len(ENDS), "runs": ENDS}
    study["phantom"] |= knobs | {"seed": seed}
    if rounds:
        study["train"]["rounds"] = rounds
    return study


def run(study: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run the study in `folder`: test AUC of both ends (last round, and each round), sizes and seconds."""
    seed, target = study["seeds"][0], study["split"]["target"]
    study["data"]["root"], study["results"] = str(folder / "raw"), str(folder / "results")
    config = folder / "study.yaml"
    config.write_text(yaml.safe_dump(study), encoding="utf-8")
    begin = cpu_seconds()

    def call(*words: str) -> None:
        if fdamed([*words, "--config", str(config)]):
            raise SystemExit(f"{' '.join(words)} failed")

    call("phantom")
    drawn = cpu_seconds() - begin
    call("ingest")
    call("split")
    for client in study["split"]["clients"]:
        call("cache", "--client", client, "--workers", "1")
    call("leakage")
    call("init", "--seed", str(seed))
    call("federate", "--runs", *(f"{name}/{target}/{seed}" for name in ENDS), "--threads", "1")
    root = folder / "results" / "calibration"
    home = root / "clients" / target
    counts = json.loads((home / "counts.json").read_text(encoding="utf-8"))
    curves = {}
    for name in ENDS:
        lines = (home / "rounds" / name / target / f"{seed}.jsonl").read_text(encoding="utf-8").splitlines()
        curves[name] = [round(100 * m["test/auc"], 2) for m in map(json.loads, lines) if "test/auc" in m]
    return {
        "auc": {name: curve[-1] for name, curve in curves.items()},
        "curves": curves,
        "test_images": counts["images"]["test"],
        "cpu_seconds": {"phantom": round(drawn, 1), "all": round(cpu_seconds() - begin, 1)},
    }


def show(lines: list[dict[str, Any]], layout: str) -> None:
    """One row a setting: mean and deviation of both ends over its seeds, beside the published values."""
    low, high = PUBLISHED[layout]
    print(f"{'setting':58} seeds  FedAvg ({low})   Oracle ({high})")
    settings: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        settings.setdefault(line["setting"], []).append(line["auc"])
    for setting, found in settings.items():
        ends = [np.array([auc[name] for auc in found]) for name in ENDS]
        cells = "   ".join(f"{e.mean():5.1f} +- {e.std(ddof=1) if len(e) > 1 else 0:4.1f}" for e in ends)
        good = all(abs(e.mean() - p) <= CLOSE for e, p in zip(ends, (low, high), strict=True))
        print(f"{setting:58} {len(found):5d}  {cells}{'  within 4' if good else ''}")


def grid_of(words: list[str]) -> list[dict[str, Any]]:
    """All combinations of `knob=value,value`; a knob is a key of `phantom`."""
    knobs = {name: [float(v) for v in values.split(",")] for name, _, values in (w.partition("=") for w in words)}
    return [dict(zip(knobs, values, strict=True)) for values in product(*knobs.values())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--knobs", nargs="*", default=[], metavar="KNOB=VALUE,VALUE")
    parser.add_argument("--seeds", nargs="+", type=int, default=[100, 101, 102, 103, 104])
    parser.add_argument("--rounds", type=int, help="instead of the study's")
    parser.add_argument("--out", type=Path, default=Path("results/calibration.jsonl"))
    parser.add_argument("--show", action="store_true", help="print what is there, run nothing")
    given = parser.parse_args()
    raw = read(given.config)
    layout = raw["data"]["layout"]
    old = given.out.read_text(encoding="utf-8").splitlines() if given.out.exists() else []
    lines = [json.loads(line) for line in old]
    done = {line["key"] for line in lines}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for knobs, seed in [] if given.show else product(grid_of(given.knobs), given.seeds):
        study = point(raw, knobs, seed, given.rounds)
        parse(study, str(given.config))
        key = digest(study)
        if key in done:
            continue
        setting = " ".join(f"{k}={v}" for k, v in (study["phantom"] | study["train"]).items() if k in SHOWN)
        with tempfile.TemporaryDirectory() as folder:
            found = run(study, Path(folder))
        line = {"key": key, "config": given.config.stem, "setting": setting, "seed": seed, **found}
        lines.append(line)
        with given.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps({k: v for k, v in line.items() if k != "curves"}), flush=True)
    show([line for line in lines if line["config"] == given.config.stem], layout)


if __name__ == "__main__":
    main()
