"""What one malicious client costs in a real study: a cached cohort, its runs, with norms and directions checked.

`python -m benchmarks.malicious_client --config config/chexpert_phantom.yaml --runs fedavg gp --seeds 0 1 2` trains each
run three times: with all sources honest, without the largest source, and with that source sending its update with the
sign flipped (scaled by `--times`; `--keep head` leaves layers of such names unchanged). It prints one JSON line for
each run and seed: the target's test AUC of the three, in how many rounds the attacker was excluded, how many honest
sources were excluded (`honest_excluded`, and `false_alarms` without an attacker), and the lowest and highest cosine of
an honest source with the others. Models and updates are flipped, not the other fields of an answer.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fdamed.config.loader import load
from fdamed.config.study import Config
from fdamed.config.train import Directions, Norms, Validation
from fdamed.core.files import read_json
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.federation.validation.directions import layer_cosines, similarities
from fdamed.models.flat import Layout
from fdamed.pipeline.clients import build_server, judge, resident
from fdamed.pipeline.paths import Places, weights_in
from fdamed.pipeline.phases import phases
from tests.support.federation import Altered

Tensor = torch.Tensor


def flip(server: Server, attacker: str, times: float, keep: Sequence[str], seen: dict[int, list[Tensor]]) -> None:
    """Flip the signs of the attacker's models and updates; `seen` gets the updates as they were trained, by round."""
    honest = server.transport.deliver

    def deliver(client: str, step: Any, nth: int, msg: Any) -> Any:
        reply = honest(client, step, nth, msg)
        for name in ("x", "g"):
            value = getattr(reply, name, None)
            if not isinstance(value, Tensor) or value.shape != (server.layout.size,):
                continue
            base = msg.x if name == "x" else torch.zeros_like(value)
            if client != server.target and nth == 0:
                seen.setdefault(server.round, []).append((value - base)[: server.layout.trainable].clone())
            if client == attacker and times:
                reply = dataclasses.replace(reply, **{name: flipped(value, base, times, server.layout, keep)})
        return reply

    server.transport = Altered(server.transport, deliver)


def flipped(value: Tensor, base: Tensor, times: float, layout: Layout, keep: Sequence[str]) -> Tensor:
    """The parameters with the sign of their change flipped; running statistics unchanged, or variances are negative."""
    out = value.clone()
    out[: layout.trainable] = torch.lerp(base, value, -times)[: layout.trainable]
    for s in layout.parameters:
        if s.name.startswith(tuple(keep)):
            out[s.start : s.stop] = value[s.start : s.stop]
    return out


def measured(
    config: Config, name: str, seed: int, attacker: str, times: float, keep: Sequence[str], absent: bool
) -> dict[str, Any]:
    """The test AUC of one run and what validation did."""
    spec = config.expanded_runs()[name]
    target, model = config.split.targets[0], resident(config)
    places, plan = Places.of(config), phases(config, spec)
    if len(plan) > 1 or any(phase.method.parts or phase.method.keeps for phase in plan):
        raise SystemExit(f"{name} has a second phase or predicts with more than the network: not for this benchmark")
    theta = weights_in(places.init(seed) / "theta.safetensors", "init", model.layout)
    seen: dict[int, list[Tensor]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for phase in plan:
            server = build_server(
                config, phase.spec, phase.method, target, seed, model, 1, lambda p: Path(scratch) / f"{p}.safetensors"
            )
            if absent:
                server.sources = server.participants = tuple(s for s in server.sources if s != attacker)
            server.validator.settings = Validation(norms=Norms(), directions=Directions())
            flip(server, attacker, times, keep, seen)
            scores = judge(config, phase.spec, target, seed, model)
            theta, record = run(phase.method, server, theta, phase.train.rounds, scores)
            server.close()
    rounds = {a["round"] for a in record.absences if a["client"] == attacker}
    others = {a["client"] for a in record.absences} - {attacker}
    auc = scores(theta)["test/auc"]
    return {"auc": auc, "excluded": len(rounds), "honest_excluded": len(others), "cosines": cosines(seen)}


def cosines(seen: dict[int, list[Tensor]]) -> list[float]:
    """Lowest and highest cosine of an honest update with the sum of the others' directions, over all rounds."""
    found = []
    for vectors in seen.values():
        others = [[k for k in range(len(vectors)) if k != i] for i in range(len(vectors))]
        found += [float(s.cosine[0]) for s in similarities(layer_cosines(vectors, ()), others).values()]
    return [round(min(found), 3), round(max(found), 3)] if found else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", nargs="+", default=["config/chexpert_phantom.yaml"])
    parser.add_argument("--runs", nargs="+", default=["fedavg", "gp"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--times", type=float, default=1.0)
    parser.add_argument("--keep", nargs="*", default=[], metavar="LAYER", help="layers that are not flipped")
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = load(*options.config)
    clients = read_json(Places.of(config).root / "cohort.json")["clients"]
    sources = [p for p in clients if p != config.split.targets[0] and p in config.split.clients]
    attacker = max(sources, key=lambda p: clients[p]["images"].get("train", 0))
    for name in options.runs:
        for seed in options.seeds:
            one = partial(measured, config, name, seed, attacker, keep=options.keep)
            honest, without = one(times=0.0, absent=False), one(times=0.0, absent=True)
            attacked = one(times=options.times, absent=False)
            aucs = {"honest": honest["auc"], "without": without["auc"], "attacked": attacked["auc"]}
            line = {"run": name, "seed": seed, **{k: round(v, 4) for k, v in aucs.items()}}
            line |= {k: attacked[k] for k in ("excluded", "honest_excluded")} | {"cosines": honest["cosines"]}
            line["false_alarms"] = honest["honest_excluded"] + bool(honest["excluded"])
            print(json.dumps(line | {"times": options.times, "keep": options.keep}), flush=True)


if __name__ == "__main__":
    main()
