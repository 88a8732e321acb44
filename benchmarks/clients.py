"""What a round costs with 10, 50, 100 and 1,000 clients: with ten of them a round, and with all of them.

`python -m benchmarks.clients` prints a table on stderr and one JSON line. Every figure is of a process of its own that
goes the way of `fdamed federate`: clients with folders of their own, LeNet, a checkpoint a round. "Memory kept": every
client remembers a vector of the model's size from round to round, as SCAFFOLD's do. Seconds are of the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

IMAGES, SIDE, BATCH, ROUNDS, FEW = 60, 28, 64, 6, 10
CASES = [(10, 10), (50, 10), (100, 10), (1000, 10), (1000, 100), (1000, 1000)]
"""Clients, and how many of them a round."""


def names_of(clients: int) -> list[str]:
    return [*(f"C{i:04d}" for i in range(clients)), "target"]


def write_clients(root: Path, clients: int) -> None:
    """Folders as `fdamed partition` writes them."""
    rng = np.random.default_rng(0)
    for name in names_of(clients):
        (root / name).mkdir(parents=True)
        np.save(root / name / "images.npy", rng.integers(0, 256, (IMAGES, SIDE, SIDE), dtype=np.uint8))
        order = pd.DataFrame({"y": (np.arange(IMAGES) % 10).astype("int16"), "split": "train"})
        order.to_parquet(root / name / "order.parquet", index=False)


def measure(root: Path, own: Path, clients: int, participants: int, remember: bool) -> dict[str, float]:
    """Median seconds of a round, of its checkpoint, and the peak of this process's memory; `own`: where state goes."""
    from fdamed.config.privacy import NO_MINIMUM
    from fdamed.config.study import Model, Recipe
    from fdamed.data.loader import load
    from fdamed.federation.client import Client, Role
    from fdamed.federation.method import Model as Weights
    from fdamed.federation.server import Server
    from fdamed.federation.storage.checkpoint import Checkpoints, Record
    from fdamed.federation.transport.on_demand import OnDemand
    from fdamed.methods.fedavg import FedAvg
    from fdamed.models.backbone import build, initialize
    from fdamed.models.flat import FlatModel

    torch.set_num_threads(1)
    names = names_of(clients)
    module = build(Model(backbone="cnn", classes=10))
    initialize(module, torch.Generator().manual_seed(0))
    model = FlatModel(module)
    release = frozenset({"weights", "count", "scalar"})

    def hospital(name: str) -> Client:
        data = load(root / name, parts=("train",))
        role: Role = "target" if name == "target" else "source"
        client = Client(name, data, model, Recipe(lr=1e-3, batch=BATCH), 0, release, role=role, minimum=NO_MINIMUM)
        if remember:
            client.memory["own"] = torch.zeros(model.layout.size)
        return client

    builders = {n: partial(hospital, n) for n in names}
    transport = OnDemand(builders, model.layout, release, lambda client: own / client / "aside.safetensors")
    server = Server(transport, "target", "fedavg")
    server.invite(participants / clients, 0)
    keep = Checkpoints(own / "state", lambda client, round: own / client / f"{round:05d}.safetensors", {})
    state, record, rounds, saves = Weights(x=model.read()), Record(), [], []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for round in range(1, ROUNDS + 1):
        server.begin(round, ROUNDS)
        begin = time.process_time()
        state = FedAvg().round(state, server)
        rounds.append(time.process_time() - begin)
        record.metrics.append({"round": round, **server.summary()})
        record.ledger += server.ledger.settle()
        begin = time.process_time()
        keep.save(round, state, server, record)
        saves.append(time.process_time() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "round_s": round_to(statistics.median(rounds[1:])),
        "checkpoint_s": round_to(statistics.median(saves[1:])),
        "peak_mb": peak // 1024,
        "grown_mb": (peak - before) // 1024,
        "ledger_lines": len(record.ledger),
    }


def round_to(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs=4, metavar=("FOLDER", "CLIENTS", "PARTICIPANTS", "REMEMBER"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.case:
            clients, participants, remember = map(int, given.case[1:])
            print(json.dumps(measure(Path(given.case[0]), Path(folder), clients, participants, bool(remember))))
        else:
            write_clients(Path(folder), max(clients for clients, _ in CASES))
            compare(folder)


def compare(folder: str) -> None:
    """All cases, each in a process of its own, on the clients in `folder`."""
    rows = []
    heads = ("clients", "a round", "memory kept", "s a round", "ms a participant", "s a checkpoint", "peak MB")
    print("  ".join(heads), file=sys.stderr)
    for clients, participants in CASES:
        for remember in (0, 1) if participants < 1000 else (0,):
            command = [sys.executable, "-m", "benchmarks.clients", "--case", folder, str(clients), str(participants)]
            done = subprocess.run(
                [*command, str(remember)], capture_output=True, text=True, check=True, env=os.environ.copy()
            )
            row = {"clients": clients, "participants": participants, "memory": bool(remember)} | json.loads(done.stdout)
            row["participant_ms"] = round_to(1000 * row["round_s"] / participants)
            rows.append(row)
            cells = [clients, participants, "yes" if remember else "no", row["round_s"], row["participant_ms"]]
            cells += [row["checkpoint_s"], row["peak_mb"]]
            print(
                "  ".join(str(c).rjust(len(h)) for c, h in zip(cells, heads, strict=True)), file=sys.stderr, flush=True
            )
    fixed = [r for r in rows if r["participants"] == FEW and not r["memory"]]
    growing = [r for r in rows if r["clients"] == 1000 and not r["memory"]]
    print(
        json.dumps(
            {
                "benchmark": "clients",
                "round_s_1000_over_10_clients": round_to(fixed[-1]["round_s"] / fixed[0]["round_s"]),
                "peak_mb_1000_minus_10_clients": fixed[-1]["peak_mb"] - fixed[0]["peak_mb"],
                "participant_ms_1000_over_10_participants": round_to(
                    growing[-1]["participant_ms"] / growing[0]["participant_ms"]
                ),
                "rows": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
