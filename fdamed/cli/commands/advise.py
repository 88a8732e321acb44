"""Predict before training which method, beta and sources work best.

Examples:
    fdamed advise --config config/config.yaml --target edema
"""

from __future__ import annotations

import argparse
import logging
from functools import partial
from typing import Any

import torch

import fdamed.theory.survey_client  # noqa: F401
from fdamed.cli.options import read_config
from fdamed.config.loader import catalog
from fdamed.config.runs import Run
from fdamed.config.study import Config
from fdamed.core.files import read_json, write_json, write_lines, write_text
from fdamed.federation.client import Client
from fdamed.federation.server import Server
from fdamed.pipeline.clients import hospital, resident, transport
from fdamed.pipeline.paths import Places, needed, weights_in
from fdamed.pipeline.selection import check_known
from fdamed.report.advice import decision_map, sentences
from fdamed.report.plots.figure import standalone
from fdamed.theory import advice
from fdamed.theory.delta_error import Rule
from fdamed.theory.survey import plan, survey

log = logging.getLogger(__name__)
GROUP = "prepare", 11
OPTIONS = {
    "--config": "",
    "--target": {"required": False, "help": "default: every target of the study"},
    "--seed": {"required": False, "help": "starting weights and labeled images (default: the first seed)"},
    "--threads": "",
}


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    seed = config.seeds[0] if arguments.seed is None else arguments.seed
    targets = config.split.targets if arguments.target is None else (arguments.target,)
    for target in targets:
        check_known("client", target, config.split.clients)
        found = advise(config, target, seed, arguments.threads)
        log.info("\n".join(sentences(found)))
        if found["weak"]:
            log.warning(f"{target}: on so few images the target's gradient cannot be distinguished from noise")


def advise(config: Config, target: str, seed: int, threads: int) -> dict[str, Any]:
    """Survey the hospitals, and write advice/{target}.json, .ledger.jsonl and .svg."""
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms imports the compiler: 2 s of CPU
    places = Places.of(config)
    model = resident(config)
    theta = weights_in(places.init(seed) / "theta.safetensors", "init", model.layout)
    sizes = _counts(config, target)
    wire = transport(
        config,
        "advise",
        model,
        threads,
        build=partial(client_of, config, target=target, seed=seed),
        aside=lambda p: places.memory(p, "advise", target, seed) / "aside.safetensors",
    )
    server = Server(wire, target, "advise")
    samples = [sizes[s] for s in server.sources]
    epochs = config.train.source.epochs * sum(samples) + config.train.target.epochs * sizes[target]
    run_images = config.train.rounds * epochs
    try:
        findings = survey(server, theta, plan(run_images, samples, sizes[target]))
    finally:
        server.close()
    share = findings.images / run_images
    if share > 0.05:
        log.warning(f"the runs are so short that the survey costs {share:.0%} of one")
    content = {
        "study": config.study,
        "target_name": target,
        "seed": seed,
        "cost": {"images": findings.images, "images_of_one_run": run_images, "share": share},
        **advice.advise(findings, rules(config)),
    }
    folder = places.root / "advice"
    write_text(folder / f"{target}.svg", standalone(decision_map(content)))
    write_lines(folder / f"{target}.ledger.jsonl", server.ledger.lines())
    write_json(folder / f"{target}.json", content)
    return content


def _counts(config: Config, target: str) -> dict[str, int]:
    """Images that each client trains on."""
    clients = read_json(needed(Places.of(config).root / "cohort.json", "split"))["clients"]
    images = {p: clients[p]["images"] for p in config.split.clients}
    return {p: n["adapt"] + (n["train"] if p != target else 0) for p, n in images.items()}


def client_of(config: Config, client: str, target: str, seed: int, **more: Any) -> Client:
    """One client; in a process of its own it must know the steps of a survey."""
    return hospital(config, Run(method="advise"), client, target, seed, labels=True, every=False, **more)


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
