"""NVIDIA FLARE beside pipes, on this machine: round trips of bytes, and a round of FedAvg at the demo's sizes.

`python -m benchmarks.network` (needs the extra `network`) prints one JSON line. Both sides are measured in one run, on
the same machine; on a busy one the ratios count, not the seconds.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.network_controller import HOSPITALS as ECHOES
from benchmarks.network_controller import SIZES
from benchmarks.network_wire import free_port, over_flare, over_pipes
from tests.support.networks import HOSPITALS, TARGET, Federation, study, together, write_images

ROUNDS = 12
RUN = f"fedavg/{TARGET}/0"
TRAIN: dict[str, Any] = {"rounds": ROUNDS, "source": {"lr": 0.001, "batch": 32}, "target": {"lr": 0.001, "batch": 16}}
TRAIN |= {"device": "cpu"}
DEMO = {"image": {"size": 48}, "model": {"width": 0.25}, "audit": {"attributes": False, "membership": False}}
DEMO["split"] = study(Path())["split"] | {"labeled": 50}
IMAGES = 545
"""Of a hospital: 300 to train on, as in the demo."""


def median_round(folder: Path) -> float:
    """Seconds of a round without the first, in which clients are built."""
    lines = (folder / RUN / "timing.jsonl").read_text(encoding="utf-8").splitlines()
    return statistics.median(json.loads(line)["seconds"] for line in lines[1:])


def over_pipes_round(folder: Path) -> float:
    folder.mkdir()
    write_images(folder / "pooled", HOSPITALS, IMAGES)
    return median_round(together(folder, (RUN,), **DEMO, train=TRAIN | {"transport": "multiprocess"}))


def rounds(folder: Path) -> dict[str, Any]:
    """A round over FLARE, over pipes before and after it, and the seconds from the start of the lead to the report."""
    before = over_pipes_round(folder / "before")
    apart = Federation(folder, free_port(), DEMO | {"train": TRAIN | {"transport": "network"}}, IMAGES)
    apart.prepare()
    try:
        for hospital in HOSPITALS:
            apart.serve(hospital)
        begin = time.monotonic()
        lead = apart.lead()
        lead.wait(timeout=1800)
        seconds = time.monotonic() - begin
    finally:
        apart.stop()
    if lead.returncode:
        raise SystemExit(apart.log("lead"))
    network, local = median_round(folder / "lead" / "results" / "apart" / "runs"), [before]
    local.append(over_pipes_round(folder / "after"))
    return {
        "round_network": network,
        "round_pipes": local,
        "ratio": round(network / statistics.mean(local), 2),
        "lead_seconds": round(seconds, 1),
    }


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # everything that was started is ended, too
    found: dict[str, Any] = {"benchmark": "network", "hospitals": len(HOSPITALS), "echoes": len(ECHOES)}
    with tempfile.TemporaryDirectory() as name:
        flare, pipes = over_flare(Path(name)), over_pipes()
    allowed = round((len(ECHOES) + 2) * SIZES["model_45mb"] / 1e6 + 300)
    found |= {"server_mb": flare.pop("server_mb"), "server_mb_before": flare.pop("server_mb_before")}
    found |= {"server_mb_allowed": allowed, "round_trip": flare, "round_trip_pipes": pipes}
    with tempfile.TemporaryDirectory() as name:
        found |= rounds(Path(name))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
