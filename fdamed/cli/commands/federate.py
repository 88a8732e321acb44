"""Train one run for one target and seed, or several runs in turn; resumes after a stop.

Examples:
    fdamed federate --config config/config.yaml --run gp --target edema --seed 0
    fdamed federate --config config/config.yaml --runs fedavg/edema/0 gp/edema/0
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from safetensors.torch import save_file

from fdamed import __version__
from fdamed.cli.options import read_config
from fdamed.config.loader import catalog
from fdamed.config.policy_checks import check_minimum
from fdamed.config.runs import MAIN, WARMUP
from fdamed.core.disclosure import only_scores, without_scores
from fdamed.core.errors import FdamedError, memory_error
from fdamed.core.files import atomic, digest_file, read_json, sweep, write_json, write_lines, write_text
from fdamed.core.locks import locked
from fdamed.core.provenance import commit
from fdamed.core.signals import stop
from fdamed.federation.transport.wire import Wire
from fdamed.models.backbone import feature_size
from fdamed.models.heads import initial_heads
from fdamed.pipeline import batching
from fdamed.pipeline.clients import check_heads, resident
from fdamed.pipeline.devices import without_gpu
from fdamed.pipeline.fingerprint import digest_images, fingerprint
from fdamed.pipeline.paths import needed, weights_in
from fdamed.pipeline.phases import Job, Phase, clear, phases, train
from fdamed.pipeline.selection import StudyRun
from fdamed.pipeline.tuning.validation_parts import check_validation
from fdamed.training.determinism import deterministic

GROUP = "run", 2
OPTIONS = {
    "--config": "",
    "--run": {"required": False},
    "--target": {"required": False},
    "--seed": {"required": False},
    "--runs": {"nargs": "+", "metavar": "RUN/TARGET/SEED", "help": "several runs in this one process"},
    "--threads": "",
}
LEAVING = 30.0
"""Seconds in which a job over a network that was stopped has left the run's folder."""


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    if config.train.transport == "network":
        fix = "Use `fdamed lead`, or train.transport in_process or multiprocess."
        raise FdamedError("the hospitals of this study are elsewhere", "train.transport", fix)
    one = (arguments.run_name, arguments.target, arguments.seed)
    if (arguments.runs and one != (None, None, None)) or (not arguments.runs and None in one):
        fix = "Give --run, --target and --seed, or --runs."
        raise FdamedError("federate needs one run, or a list of runs", "command line", fix)
    keys = [batching.key(word) for word in arguments.runs] if arguments.runs else [one]
    runs = [StudyRun.trained(config, *key) for key in keys]
    with stop.listening():
        if arguments.runs:
            batching.train_all(runs, lambda one: train_or_restore(one, arguments.threads, in_batch=True))
        else:
            train_or_restore(runs[0], arguments.threads, in_batch=False)


def train_or_restore(one: StudyRun, threads: int, in_batch: bool, wire: Wire | None = None) -> None:
    """Train one run, unless an earlier batch has finished it."""
    with locked(one.folder, wait=LEAVING if wire else 0.0):
        sweep(one.folder)  # what a killed process left half-written; checkpoints clean up their own folders
        for client in one.config.split.clients:
            own = one.own_model(client)
            sweep(own.parent, own.name)
        if batching.restore(one, threads):
            return
        federate(one, threads, wire)
        if in_batch:
            batching.keep(one, threads)


def federate(one: StudyRun, threads: int, wire: Wire | None = None) -> None:
    """Train, phase by phase, and write the run's folder; `wire`: to hospitals elsewhere."""
    torch.set_num_threads(threads)
    deterministic()
    config, spec, folder, places = one.config, one.spec, one.folder, one.places
    model, plan = resident(without_gpu(config) if wire else config, spec), phases(config, spec)
    cohort = read_json(needed(places.root / "cohort.json", "split"))
    heads = initial_heads(model.module, one.seed)
    theta = weights_in(places.init(one.seed) / "theta.safetensors", "init", model.layout, heads)
    needed(places.root / "leakage.json", "leakage")
    check_heads(config, one.name, spec, one.target)
    if one.candidate_of:
        check_validation(one)
    sizes = {client: entry["images"] for client, entry in cohort["clients"].items()}
    check_minimum(one.name, spec, config, catalog(), sizes, "cohort.json", (one.target,))
    job = Job(one, threads, model, fingerprint(one, threads, here=wire is None), wire)
    sides = {f"train.{side}.batch {getattr(p.train, side).batch}" for p in plan for side in ("source", "target")}
    try:
        learned, record, lengths, costs = train(job, plan, theta)
    except (MemoryError, RuntimeError) as error:
        raise memory_error(error, "training", one.key, ", ".join(sorted(sides))) or error from None
    facts = describe(job, plan, lengths, cohort["hash"])
    write_json(folder / "run.json", facts | ({"privacy": costs} if costs else {}))
    write_lines(one.rounds(), only_scores(record.metrics))
    record.metrics = [without_scores(row) for row in record.metrics]
    for name in ("metrics", "timing", "ledger", "layers", "absences"):
        write_lines(folder / f"{name}.jsonl", getattr(record, name))
    with atomic(folder / "theta.safetensors", sum(tensor.nbytes for tensor in learned.values())) as draft:
        save_file(learned, draft)
    write_text(folder / "done", digest_file(folder / "theta.safetensors") + "\n")
    clear(job, plan)


def describe(job: Job, plan: tuple[Phase, ...], lengths: list[int], manifest: str) -> dict[str, Any]:
    """The content of run.json."""
    config, main = job.run.config, next(phase for phase in plan if phase.name == MAIN)
    facts = job.run.facts() | {
        "title": ", then ".join(type(phase.method).title for phase in plan if phase.name != WARMUP),
        "options": vars(main.method),
        "rounds": sum(lengths),
        "train": main.train.model_dump(mode="json"),
        "device": job.fingerprint["device"],
        "parameters": job.model.layout.trainable,
        "extra_parameters": main.method.extra_parameters(
            len(config.split.clients) - 1, feature_size(config.model), config.model.classes
        ),
        "versions": {
            "fdamed": __version__,
            "torch": job.fingerprint["torch"],
            "source": job.fingerprint["source"],
        }
        | ({"commit": known} if (known := commit()) else {}),
        "digests": {k: job.fingerprint[k] for k in ("settings", "data", "init")}
        | {"manifest": manifest, "images": digest_images(config)},
    }
    if main.train.patience:
        facts["stopped_early"] = sum(lengths[: plan.index(main) + 1]) < main.method.length * main.train.rounds
    if len(plan) > 1:
        facts["phases"] = [
            {"phase": p.name, "method": p.spec.method, "title": type(p.method).title, "options": vars(p.method)}
            | {"rounds": rounds, "train": p.train.model_dump(mode="json")}
            for p, rounds in zip(plan, lengths, strict=True)
        ]
    return facts
