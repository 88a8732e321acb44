"""Predict before training which of the study's runs does best, by trying one round of each on held-out labels.

Examples:
    fdamed advise --config config/config.yaml --target edema
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
from fdamed.data.loader import Labeled
from fdamed.federation.client import Client
from fdamed.federation.method import REGISTRY, Method
from fdamed.federation.runner import run as run_rounds
from fdamed.federation.server import Ledger, Server
from fdamed.federation.storage.answers import Answers
from fdamed.federation.transport.base import Transport
from fdamed.models.flat import FlatModel
from fdamed.pipeline.clients import build_client, declare, remembered, resident, transport
from fdamed.pipeline.paths import Places, needed, weights_in
from fdamed.pipeline.phases import steps_of
from fdamed.pipeline.selection import check_known
from fdamed.pipeline.trial_labels import candidates, check_folds, labeled_images, tryable
from fdamed.report.advice import decision_map, sentences
from fdamed.report.plots.figure import standalone
from fdamed.theory.advice import explain, recommend
from fdamed.theory.delta_error import Rule
from fdamed.theory.survey import survey
from fdamed.theory.trials import InFold, TrialServer, drops, without_fold
from fdamed.training.determinism import deterministic

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
        check_folds(config, target, seed)
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
    ledger: Ledger = field(default_factory=Ledger)
    wires: dict[str, tuple[Transport, dict[str, Any]]] = field(default_factory=dict)
    """How the sources train -> the clients, and the sources' answers in trials."""

    def server(self, spec: Run) -> Server:
        """A server whose clients train as `spec` says."""
        return self._ready(Server(self._clients(spec)[0], self.target, "advise"), spec)

    def trial(self, spec: Run, fold: int) -> TrialServer:
        """A server whose target holds out a fold of its labeled images; to be closed after the fold."""
        (wire, known), train = self._clients(spec), self.config.train_of(spec)
        epochs = dict.fromkeys(wire.names, train.source.epochs) | {self.target: train.target.epochs}
        inside = InFold(wire, self._wire(spec, fold, (self.target,)))
        server = TrialServer(inside, self.target, "advise", known=known, epochs=epochs)
        self._ready(server, spec)
        return server

    def close(self) -> None:
        for wire, _ in self.wires.values():
            wire.close()

    def _ready(self, server: Server, spec: Run) -> Server:
        server.ledger = self.ledger
        server.invite(self.config.train_of(spec).participation, self.seed)
        declare(self.config, server)
        return server

    def _clients(self, spec: Run) -> tuple[Transport, dict[str, Any]]:
        train = self.config.train_of(spec)
        key = f"{train.source.model_dump_json()} {train.precision}"
        if key not in self.wires:
            self.wires[key] = self._wire(spec), {}
        return self.wires[key]

    def _wire(self, spec: Run, fold: int | None = None, names: tuple[str, ...] = ()) -> Transport:
        config, places = self.config, Places.of(self.config)
        steps = {step.name: step for run in candidates(config).values() for step in steps_of(config, run)}
        answers = remembered(config, spec, steps.values(), self.threads)
        return transport(
            config,
            "advise",
            self.model,
            self.threads,
            partial(client_of, config, spec, target=self.target, seed=self.seed, fold=fold, answers=answers),
            lambda p: places.memory(p, "advise", self.target, self.seed) / "aside.safetensors",
            names,
        )


def advise(config: Config, target: str, seed: int, threads: int) -> dict[str, Any]:
    """Train a warm-up, survey the hospitals, try the runs; write advice/{target}.json, .ledger.jsonl and .svg."""
    torch.set_num_threads(threads)
    deterministic()
    places, stage = Places.of(config), Stage(config, target, seed, threads, resident(config))
    theta = weights_in(places.init(seed) / "theta.safetensors", "init", stage.model.layout)
    try:
        content = {"study": config.study, "target_name": target, "seed": seed, **measured(stage, theta)}
    finally:
        stage.close()
    folder = places.root / "advice"
    write_text(folder / f"{target}.svg", standalone(decision_map(content)))
    write_lines(folder / f"{target}.ledger.jsonl", stage.ledger.lines())
    write_json(folder / f"{target}.json", content)
    return content


def measured(stage: Stage, theta: Tensor) -> dict[str, Any]:
    """What is found after a warm-up from `theta`: the recommendations, their explanation and their cost."""
    config, sizes = stage.config, _counts(stage.config, stage.target)
    places, skipped = tryable(config, stage.target, stage.seed)
    labeled = sizes.pop(stage.target)
    one_round = config.train.source.epochs * sum(sizes.values())
    warm, theta = warmed_up(stage, theta)
    server = stage.server(Run(method="advise"))
    server.begin(warm + 1, warm + 1)
    findings = survey(server, theta, labeled)
    images, cells = warm * one_round + findings.images, []
    for (number, noise), runs in places.items():
        found, used = tried(stage, runs, number, noise, theta, warm + 1)
        images += used
        cells.append({"labeled": number, "noise": noise, **recommend(found)})
    run_images = config.train.rounds * (one_round + config.train.target.epochs * labeled)
    cost = {"images": images, "images_of_one_run": run_images, "share": images / run_images}
    return {
        "warmup": warm,
        "cost": cost | {"runs": len(config.expanded_runs()) * len(config.seeds)},
        "cells": cells,
        "skipped": skipped,
        **explain(findings, rules(config)),
    }


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
    final, _ = run_rounds(method, server, theta, rounds, lambda _: {})
    return rounds, method.handover(final, server.layout)


def tried(
    stage: Stage, runs: Mapping[str, Run], labeled: Any, noise: float, theta: Tensor, round: int
) -> tuple[dict[str, list[float]], int]:
    """Run -> the drop of the held-out loss in each fold, and the images used."""
    out, images = dict[str, list[float]](), 0
    for train in {str(spec.train): spec.train for spec in runs.values()}.values():
        spec = Run(method="advise", labeled=labeled if isinstance(labeled, int) else None, noise=noise, train=train)
        methods = {n: REGISTRY[r.method](**r.options) for n, r in runs.items() if r.train == train}
        for fold in range(FOLDS):
            server = stage.trial(spec, fold)
            try:
                for name, drop in drops(server, methods, theta, round).items():
                    out.setdefault(name, []).append(drop)
            finally:
                server.close()
            images += server.images
    return {name: out[name] for name in runs}, images


def _counts(config: Config, target: str) -> dict[str, int]:
    """Images that each client trains on."""
    clients = read_json(needed(Places.of(config).root / "cohort.json", "split"))["clients"]
    images = {p: clients[p]["images"] for p in config.split.clients}
    return {p: n["adapt"] + (n["train"] if p != target else 0) for p, n in images.items()}


def client_of(
    config: Config,
    spec: Run,
    client: str,
    target: str,
    seed: int,
    fold: int | None = None,
    answers: Answers | None = None,
    **more: Any,
) -> Client:
    """One client; the target without a fold of its labeled images, if one is given.

    Runs ask sources the questions of the warm-up and the trials again, but none of the target without a fold.
    """
    known = answers if client != target else None
    made = build_client(config, spec, client, target, seed, labels=True, every=False, answers=known, **more)
    if client != target or fold is None or not isinstance(made.data, Labeled):
        return made
    _, owner = labeled_images(config, target, spec.labeled, seed)
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
