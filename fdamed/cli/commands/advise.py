"""Predict before training which of the study's runs does best, by trying one round of each on held-out labels.

Examples:
    fdamed advise --config config/config.yaml --target edema
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fdamed.cli.options import read_config
from fdamed.config.loader import catalog
from fdamed.config.privacy import FOLDS
from fdamed.config.runs import WARMUP, Run, Warmup
from fdamed.config.study import Config
from fdamed.core.files import read_json, write_json, write_lines, write_text
from fdamed.core.rng import stream
from fdamed.data.loader import Labeled, balanced_part, load, patients
from fdamed.federation.client import Client
from fdamed.federation.method import REGISTRY, Method
from fdamed.federation.runner import run as run_rounds
from fdamed.federation.server import Ledger
from fdamed.models.flat import FlatModel
from fdamed.pipeline.clients import declare, hospital, resident, transport
from fdamed.pipeline.paths import Places, needed, weights_in
from fdamed.pipeline.selection import check_known
from fdamed.report.advice import decision_map, sentences
from fdamed.report.plots.figure import standalone
from fdamed.theory.advice import explain, recommend
from fdamed.theory.delta_error import Rule
from fdamed.theory.survey import survey
from fdamed.theory.trials import TrialServer, drops, is_candidate, without_fold

log = logging.getLogger(__name__)
GROUP = "prepare", 11
OPTIONS = {
    "--config": "",
    "--target": {"required": False, "help": "default: every target of the study"},
    "--seed": {"required": False, "help": "starting weights and labeled images (default: the first seed)"},
    "--threads": "",
}
USUAL = Warmup(rounds=2)
"""The warm-up of a study whose runs have none: the authors' own."""


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    seed = config.seeds[0] if arguments.seed is None else arguments.seed
    targets = config.split.targets if arguments.target is None else (arguments.target,)
    for target in targets:
        check_known("client", target, config.split.clients)
        found = advise(config, target, seed, arguments.threads)
        log.info("\n".join(sentences(found, config.sweeps())))
        cost = found["cost"]
        log.info(f"{target}: the trials cost {cost['share']:.2f} of one training run; the study has {cost['runs']}")
        if found["weak"]:
            log.warning(f"{target}: on so few images the target's gradient cannot be distinguished from noise")


@dataclass(frozen=True)
class Stage:
    """What all servers of one recommendation have in common."""

    config: Config
    target: str
    seed: int
    threads: int
    model: FlatModel
    ledger: Ledger

    def server(self, spec: Run, fold: int | None = None, known: dict[str, Any] | None = None) -> TrialServer:
        """A server whose clients train as `spec` says, the target without a fold of its labeled images."""
        config, places = self.config, Places.of(self.config)
        wire = transport(
            config,
            "advise",
            self.model,
            self.threads,
            build=partial(client_of, config, spec, target=self.target, seed=self.seed, fold=fold),
            aside=lambda p: places.memory(p, "advise", self.target, self.seed) / "aside.safetensors",
        )
        train = config.train_of(spec)
        epochs = dict.fromkeys(config.split.clients, train.source.epochs) | {self.target: train.target.epochs}
        server = TrialServer(wire, self.target, "advise", known={} if known is None else known, epochs=epochs)
        server.ledger = self.ledger
        server.invite(train.participation, self.seed)
        declare(config, server)
        return server


def advise(config: Config, target: str, seed: int, threads: int) -> dict[str, Any]:
    """Train a warm-up, survey the hospitals, try the runs; write advice/{target}.json, .ledger.jsonl and .svg."""
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms imports the compiler: 2 s of CPU
    places, model, sizes = Places.of(config), resident(config), _counts(config, target)
    stage = Stage(config, target, seed, threads, model, Ledger())
    theta = weights_in(places.init(seed) / "theta.safetensors", "init", model.layout)
    one_round = config.train.source.epochs * (sum(sizes.values()) - sizes[target])
    warm, theta = warmed_up(stage, theta)
    server = stage.server(Run(method="advise"))
    try:
        server.begin(warm + 1, warm + 1)
        findings = survey(server, theta, sizes[target])
    finally:
        server.close()
    images, cells = warm * one_round + findings.images, []
    known: dict[str, dict[str, Any]] = {}
    for (labeled, noise), runs in regimes(config).items():
        found, used = tried(stage, runs, labeled, noise, theta, warm + 1, known)
        images += used
        cells.append({"labeled": labeled, "noise": noise, **recommend(found)})
    run_images = config.train.rounds * (one_round + config.train.target.epochs * sizes[target])
    cost = {"images": images, "images_of_one_run": run_images, "share": images / run_images}
    content = {
        "study": config.study,
        "target_name": target,
        "seed": seed,
        "warmup": warm,
        "cost": cost | {"runs": len(config.expanded_runs()) * len(config.seeds)},
        "cells": cells,
        **explain(findings, rules(config)),
    }
    folder = places.root / "advice"
    write_text(folder / f"{target}.svg", standalone(decision_map(content)))
    write_lines(folder / f"{target}.ledger.jsonl", stage.ledger.lines())
    write_json(folder / f"{target}.json", content)
    return content


def candidates(config: Config) -> dict[str, Run]:
    """The runs of which one round can be tried: see `is_candidate`; not with auxiliary heads or a second phase."""
    return {
        name: spec
        for name, spec in config.expanded_runs().items()
        if spec.method in REGISTRY and is_candidate(REGISTRY[spec.method]) and not (spec.auxiliary or spec.then)
    }


def regimes(config: Config) -> dict[tuple[Any, float], dict[str, Run]]:
    """(Labeled images, noise) -> the candidates there, where there are two; one that uses no labels is in all."""
    runs, whole = candidates(config), config.split.labeled
    labeled = {name: (spec.labeled or whole) if config.few_labels(spec) else None for name, spec in runs.items()}
    places = {(n, config.noise_of(runs[name])): None for name, n in labeled.items() if n is not None}
    found = {
        (n, noise): {r: s for r, s in runs.items() if labeled[r] in (n, None) and config.noise_of(s) == noise}
        for n, noise in places
    }
    return {place: there for place, there in found.items() if len(there) > 1}


def warmed_up(stage: Stage, theta: Tensor) -> tuple[int, Tensor]:
    """The warm-up that most runs of the study have, as they train it: its rounds, and its model.

    It must not see the labels that are held out later: one that uses them is replaced by as many rounds of FedAvg.
    """
    config = stage.config
    given = Counter(spec.warmup.model_dump_json() for spec in candidates(config).values() if spec.warmup)
    warmup = Warmup.model_validate_json(given.most_common(1)[0][0]) if given else USUAL
    if REGISTRY[warmup.method].target_labels:
        warmup = Warmup(rounds=warmup.rounds, train=warmup.train)
    rounds = max(1, min(warmup.rounds, config.train.rounds - 1))
    spec = config.phases(Run(method="fedavg", warmup=warmup.model_copy(update={"rounds": rounds})))[WARMUP]
    method: Method[Any] = REGISTRY[spec.method](**spec.options)
    server = stage.server(spec)
    try:
        final, _ = run_rounds(method, server, theta, rounds, lambda _: {})
    finally:
        server.close()
    return rounds, method.handover(final, server.layout)


def tried(
    stage: Stage,
    runs: Mapping[str, Run],
    labeled: Any,
    noise: float,
    theta: Tensor,
    round: int,
    known: dict[str, dict[str, Any]],
) -> tuple[dict[str, list[float]], int]:
    """Run -> the drop of the held-out loss in each fold, and the images used.

    `known`: the sources' answers so far, by the recipe they train with.
    """
    config, out, images = stage.config, dict[str, list[float]](), 0
    for train in {str(spec.train): spec.train for spec in runs.values()}.values():
        spec = Run(method="advise", labeled=labeled if isinstance(labeled, int) else None, noise=noise, train=train)
        methods = {n: REGISTRY[r.method](**r.options) for n, r in runs.items() if r.train == train}
        found: list[dict[str, float]] = []
        for fold in range(FOLDS):
            server = stage.server(spec, fold, known.setdefault(config.train_of(spec).source.model_dump_json(), {}))
            try:
                found.append(drops(server, methods, theta, round))
            finally:
                server.close()
            images += server.images
        out |= {name: [one[name] for one in found] for name in methods}
    return {name: out[name] for name in runs}, images


def _counts(config: Config, target: str) -> dict[str, int]:
    """Images that each client trains on."""
    clients = read_json(needed(Places.of(config).root / "cohort.json", "split"))["clients"]
    images = {p: clients[p]["images"] for p in config.split.clients}
    return {p: n["adapt"] + (n["train"] if p != target else 0) for p, n in images.items()}


def client_of(
    config: Config, spec: Run, client: str, target: str, seed: int, fold: int | None = None, **more: Any
) -> Client:
    """One client; the target without a fold of its labeled images, if one is given."""
    made = hospital(config, spec, client, target, seed, labels=True, every=False, **more)
    if client != target or fold is None or not isinstance(made.data, Labeled):
        return made
    folder = Places.of(config).client(target)
    y, owner = load(folder, parts=("adapt",)).y, patients(folder, ("adapt",))
    owner = owner if spec.labeled is None else owner[balanced_part(y, spec.labeled, seed)]
    return replace(made, data=without_fold(made.data, owner, fold, stream(seed, target, "folds")))


def rules(config: Config) -> dict[str, Rule]:
    """The study's runs that the theory covers, on the labels and noise of the split."""
    out = {}
    for name, spec in config.expanded_runs().items():
        method = catalog()[spec.method]
        as_cut = spec.labeled in (None, config.split.labeled) and config.noise_of(spec) == config.split.noise
        options = {key: option["default"] for key, option in method["options"].items()} | spec.options
        if method["theory"] and as_cut and spec.then is None and options.get("server_step", 1.0) == 1.0:
            out[name] = Rule(method["theory"], options.get("beta"), options.get("weighting", "samples"))
    return out
