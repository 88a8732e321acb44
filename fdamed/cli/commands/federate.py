"""Train one run for one target and seed, or several runs in turn; resumes after a stop.

Examples:
    fdamed federate --config config/config.yaml --run gp --target edema --seed 0
    fdamed federate --config config/config.yaml --runs fedavg/edema/0 gp/edema/0
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from functools import partial
from typing import Any

from fdamed import __version__
from fdamed.cli.options import add_config, add_run, read_config
from fdamed.config.digest import digest_sections, without_defaults
from fdamed.config.loader import catalog
from fdamed.config.policy_checks import check_floor
from fdamed.config.runs import Run
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import (
    atomic,
    digest,
    digest_file,
    held,
    read_json,
    sweep,
    write_json,
    write_lines,
    write_text,
)
from fdamed.core.provenance import commit
from fdamed.core.signals import stop
from fdamed.pipeline import batching as batch
from fdamed.pipeline.clients import device, resident
from fdamed.pipeline.paths import Places, needed, weights_in
from fdamed.pipeline.personalized_models import own_path
from fdamed.pipeline.phases import Job, Phase, checkpoints, phases, train
from fdamed.pipeline.training_code import training_code

GROUP = "run", 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_run(parser, required=False)
    parser.add_argument("--runs", nargs="+", metavar="RUN/TARGET/SEED", help="several runs in this one process")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch; part of the result's bits")


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    one = (arguments.run_name, arguments.target, arguments.seed)
    if (None in one) == (arguments.runs is None) or (arguments.runs and one != (None, None, None)):
        fix = "Give --run, --target and --seed, or --runs."
        raise FdamedError("federate needs one run, or a list of runs", "command line", fix)
    keys = [batch.key(word) for word in arguments.runs] if arguments.runs else [one]
    for each in keys:
        federated(config, *each)
    each_run = partial(_one, config, arguments.threads, bool(arguments.runs))
    with stop.listening():
        batch.train_all(keys, each_run) if arguments.runs else each_run(one)


def _one(config: Config, threads: int, in_batch: bool, one: batch.Key) -> None:
    """Train one run, unless a batch has finished it before."""
    places, spec = Places.of(config), federated(config, *one)
    folder = places.run(*one)
    conditions = partial(fingerprint, config, one[0], spec, *one[1:], threads, places)
    with held(folder):
        _sweep(places, config, one)
        if batch.taken_back(folder, conditions):
            return
        federate(config, one[0], spec, *one[1:], threads)
        if in_batch:
            batch.keep(folder, conditions)


def _sweep(places: Places, config: Config, one: batch.Key) -> None:
    """Remove what a killed process left half-written; its checkpoints look after their own folders."""
    sweep(places.run(*one))
    for client in config.split.clients:
        own = own_path(places, client, *one)
        sweep(own.parent, own.name)


def chosen(config: Config, run: str, target: str, seed: int) -> Run:
    """The run's settings, after a check that the study has this run, target and seed."""
    for what, value, known in (
        ("run", run, list(config.expanded_runs())),
        ("target", target, list(config.split.targets)),
        ("seed", seed, list(config.seeds)),
    ):
        if value not in known:
            fix = f"Choose one of: {', '.join(map(str, known))}."
            raise FdamedError(f"the configuration has no {what} {value!r}", "command line", fix)
    return config.expanded_runs()[run]


def federated(config: Config, run: str, target: str, seed: int) -> Run:
    """The settings of a run of hospitals that train; a classical row is made and scored elsewhere."""
    spec = chosen(config, run, target, seed)
    if catalog()[spec.method].get("classical"):
        raise FdamedError(f"{spec.method} is a classical method", f"runs.{run}", "Use `fdamed fit-classical`.")
    return spec


def federate(config: Config, name: str, spec: Run, target: str, seed: int, threads: int) -> None:
    """Train, phase by phase, and write the run's folder."""
    import torch
    from safetensors.torch import save_file

    from fdamed.core.out_of_memory import telling_batch

    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms imports the compiler: 2 s of CPU
    places, model, plan = Places.of(config), resident(config), phases(config, spec)
    folder = places.run(name, target, seed)
    cohort = read_json(needed(places.root / "cohort.json", "split"))
    theta = weights_in(places.init(seed) / "theta.safetensors", "init", model.layout)
    needed(places.root / "leakage.json", "leakage")
    sizes = {client: entry["images"] for client, entry in cohort["clients"].items()}
    check_floor(name, spec, config, catalog(), sizes, "cohort.json", (target,))
    job = Job(
        config, name, target, seed, threads, model, fingerprint(config, name, spec, target, seed, threads, places)
    )
    with telling_batch("training", f"{name}/{target}/{seed}", _batches(plan)):
        final, record, lengths, costs = train(job, plan, theta)
    facts = describe(job, spec, plan, lengths, cohort["hash"])
    write_json(folder / "run.json", facts | ({"privacy": costs} if costs else {}))
    write_lines(folder / "metrics.jsonl", record.metrics)
    write_lines(folder / "timing.jsonl", record.timing)
    write_lines(folder / "ledger.jsonl", record.ledger)
    write_lines(folder / "layers.jsonl", record.layers)
    write_lines(folder / "absences.jsonl", record.absences)
    with atomic(folder / "theta.safetensors", final.nbytes) as draft:
        save_file(plan[-1].method.named(final, model.layout), draft)
    write_text(folder / "done", digest_file(folder / "theta.safetensors") + "\n")
    for phase in plan:
        checkpoints(job, phase).clear(config.split.clients)


def fingerprint(
    config: Config, name: str, spec: Run, target: str, seed: int, threads: int, places: Places
) -> dict[str, Any]:
    """What must be the same when a checkpoint is taken up again."""
    import torch

    wanted = config.differential_of(spec)
    private = {"differential": without_defaults(wanted)} if wanted else {}
    data = {p: digest_file(needed(places.client(p) / "order.parquet", "cache")) for p in sorted(config.split.clients)}
    return {
        "settings": digest_sections(config.model, config.train, spec),
        "run": f"{name}/{target}/{seed}",
        "noise": config.noise_of(spec),
        "data": digest(data),
        "init": digest_file(places.init(seed) / "theta.safetensors"),
        "threads": threads,
        "torch": torch.__version__,
        "fdamed": __version__,
        "source": training_code(spec, catalog()),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": device(config),
        **private,
    }


def describe(job: Job, spec: Run, plan: tuple[Phase, ...], lengths: list[int], manifest: str) -> dict[str, Any]:
    """run.json: what this run was."""
    from fdamed.models.backbone import feature_size

    config, first = job.config, plan[0]
    facts = {
        "study": config.study,
        "run": job.run,
        "method": spec.method,
        "title": ", then ".join(type(phase.method).title for phase in plan),
        "options": _options(first),
        "auxiliary": spec.auxiliary.model_dump(mode="json") if spec.auxiliary else None,
        "labeled": spec.labeled or config.split.labeled,
        "target": job.target,
        "sources": sorted(p for p in config.split.clients if p != job.target),
        "seed": job.seed,
        "noise": config.noise_of(spec),
        "rounds": sum(lengths),
        "train": first.train.model_dump(mode="json"),
        "device": job.fingerprint["device"],
        "parameters": job.model.layout.trainable,
        "extra_parameters": first.method.extra_parameters(
            len(config.split.clients) - 1, feature_size(config.model), config.model.classes
        ),
        "versions": {
            "fdamed": __version__,
            "torch": job.fingerprint["torch"],
            "source": job.fingerprint["source"],
            "commit": commit() or "unknown",
        },
        "digests": {k: job.fingerprint[k] for k in ("settings", "data", "init")}
        | {"manifest": manifest, "images": digest_images(config)},
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
    }
    if first.train.patience:
        facts["stopped_early"] = lengths[0] < first.method.length(first.train.rounds)
    if len(plan) > 1:
        facts["phases"] = [
            {
                "method": phase.spec.method,
                "title": type(phase.method).title,
                "options": _options(phase),
                "rounds": rounds,
                "train": phase.train.model_dump(mode="json"),
            }
            for phase, rounds in zip(plan, lengths, strict=True)
        ]
    return facts


def digest_images(config: Config) -> str:
    """What decides pixels and labels, and so what a model may be shown: not where files are, nor the salt."""
    places = {"root", "salt", "reject_share", "allowed_roots", "demographics", "mimic_iv", "table"}
    data = without_defaults(config.data, exclude=places)
    for domain in data.get("domains", {}).values():
        domain.pop("root", None)
    return digest([without_defaults(config.image), without_defaults(config.split), data])


def _batches(plan: tuple[Phase, ...]) -> str:
    """The batch sizes as the configuration names them."""
    sides = {f"train.{side}.batch {getattr(p.train, side).batch}" for p in plan for side in ("source", "target")}
    return ", ".join(sorted(sides))


def _options(phase: Phase) -> dict[str, Any]:
    return dataclasses.asdict(phase.method)  # type: ignore[call-overload,no-any-return]  # every method is a dataclass
