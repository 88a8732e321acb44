"""A round of FedAvg with models of 45 MB when one hospital has a slow line: 10 Mbit/s, 100 ms, 1 % of packets lost.

`python -m benchmarks.slow_line` (root, the extra `network`) prints one JSON line: seconds of a round, and from the
start of one to that of the next (with evaluation and checkpoint), beside the floor of the slow hospital's bytes and
beside the same on a perfect line (tests/support/lines.py).
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import tempfile
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.lines import HOST, PERFECT, SLOW, Line, possible
from tests.support.networks import HOSPITALS, TARGET, Federation, study

ROUNDS = 3
MODEL = {"width": 1.0}


def rows(apart: Federation, run: str, name: str) -> list[dict[str, Any]]:
    path = apart.run_folder(run) / TARGET / "0" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    if why := possible():
        raise SystemExit(why)
    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
        free.close()
        train = study(Path())["train"] | {"rounds": ROUNDS, "transport": "network"}
        network = {"host": HOST, "port": port, "answer_minutes": 30, "wait_minutes": 5}
        changes = {"runs": {"slow": {"method": "fedavg"}, "fast": {"method": "fedavg"}}, "train": train}
        apart, line = Federation(Path(name), port, changes | {"network": network, "model": MODEL}), Line()
        try:
            places = {who: line.there if who == "north" else line.here for who in ("lead", *HOSPITALS)}
            apart.places = {who: line.into(place) for who, place in places.items()}
            apart.prepare()
            for hospital in HOSPITALS:
                apart.serve(hospital)
            for run, quality in (("fast", PERFECT), ("slow", SLOW)):
                line.set(quality)
                lead = apart.lead("--runs", f"{run}/{TARGET}/0")
                lead.wait(timeout=3000)
                line.set(PERFECT)
                if lead.returncode:
                    sys.exit(apart.log("lead"))
        finally:
            apart.stop()
            line.close()
        found: dict[str, Any] = {"benchmark": "slow_line"}
        for run in ("fast", "slow"):
            timing = rows(apart, run, "timing")
            found[f"round_{run}"] = statistics.median(row["seconds"] for row in timing[1:])
            starts = [datetime.fromisoformat(row["started"]) for row in timing]
            found[f"period_{run}"] = statistics.median((b - a).total_seconds() for a, b in pairwise(starts))
        north = [row["bytes"] for row in rows(apart, "slow", "ledger") if "north" in (row["from"], row["to"])]
        found |= {"bytes": sum(north) // ROUNDS, "floor": round(8 * sum(north) / ROUNDS / SLOW["bits"], 1)}
        if found["round_slow"] < found["floor"]:
            raise SystemExit(f"the line was not slow: {found}")
        print(json.dumps(found | {"ratio": round(found["round_slow"] / found["floor"], 2)}))


if __name__ == "__main__":
    main()
