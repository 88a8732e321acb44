"""A round over NVIDIA FLARE beside a round over pipes: the same study, the same bits, three hospitals on this machine.

`python -m benchmarks.network` (needs the extra `network`) prints one JSON line. Both sides are measured in one run, on
the same machine; the ratio counts, not the seconds.
"""

from __future__ import annotations

import json
import socket
import statistics
import tempfile
import time
from pathlib import Path

from tests.support.networks import HOSPITALS, TARGET, Federation, together

ROUNDS = 12
RUN = f"fedavg/{TARGET}/0"


def median_round(folder: Path) -> float:
    """Seconds of a round without the first, in which clients are built."""
    lines = (folder / RUN / "timing.jsonl").read_text(encoding="utf-8").splitlines()
    return statistics.median(json.loads(line)["seconds"] for line in lines[1:])


def main() -> None:
    with tempfile.TemporaryDirectory() as name, socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        folder, port = Path(name), int(line.getsockname()[1])
        line.close()
        train = {"rounds": ROUNDS, "source": {"lr": 0.001, "batch": 8}, "target": {"lr": 0.001, "batch": 4}}
        apart = Federation(folder, port, {"train": train | {"device": "cpu", "transport": "network"}})
        apart.prepare()
        try:
            for hospital in HOSPITALS:
                apart.serve(hospital)
            begin = time.monotonic()
            lead = apart.lead()
            lead.wait(timeout=1200)
            seconds = time.monotonic() - begin
        finally:
            apart.stop()
        if lead.returncode:
            raise SystemExit(apart.log("lead"))
        pipes = together(folder, (RUN,), train=train | {"device": "cpu", "transport": "multiprocess"})
        network, local = median_round(folder / "lead" / "results" / "apart" / "runs"), median_round(pipes)
        found = {
            "benchmark": "network",
            "hospitals": len(HOSPITALS),
            "rounds": ROUNDS,
            "lead_seconds": round(seconds, 1),
        }
        found |= {"round_network": network, "round_pipes": local, "ratio": round(network / local, 2)}
        print(json.dumps(found))


if __name__ == "__main__":
    main()
