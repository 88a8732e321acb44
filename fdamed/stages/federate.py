"""fdamed federate: one method, one target, one seed, or several of them in turn; resumes where it was stopped."""

from __future__ import annotations

import argparse
import dataclasses
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from fdamed import __version__
from fdamed.config import Config, Run
from fdamed.datasets import Cut
from fdamed.errors import FdamedError
from fdamed.federation.stopping import stop
from fdamed.files import atomic, digest, digest_file, held, read_json, write_json, write_lines, write_text
from fdamed.stages import batch
from fdamed.stages.places import Places, add_config, add_run, needed, read_config, weights_in

if TYPE_CHECKING:
    from fdamed.federation.loop import Judge
    from fdamed.federation.method import Method
    from fdamed.federation.network import Network
    from fdamed.federation.site import Site
    from fdamed.models.flat import FlatModel
    from fdamed.stages.own_models import Own


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
        chosen(config, *each)
    train = partial(_one, config, arguments.threads, bool(arguments.runs))
    with stop.listening():
        batch.train_all(keys, train) if arguments.runs else train(one)


def _one(config: Config, threads: int, in_batch: bool, one: batch.Key) -> None:
    """Train one run, unless a batch has finished it before."""
    places, spec = Places.of(config), chosen(config, *one)
    folder = places.run(*one)
    conditions = partial(fingerprint, config, one[0], spec, *one[1:], threads, places)
    with held(folder):
        if batch.taken_back(folder, conditions):
            return
        federate(config, one[0], spec, *one[1:], threads)
        if in_batch:
            batch.keep(folder, conditions)


def chosen(config: Config, run: str, target: str, seed: int) -> Run:
    """The run's settings, after a check that the study has this run, target and seed."""
    for what, value, known in (
        ("run", run, list(config.expanded_runs())),
        ("target", target, list(config.cut.targets)),
        ("seed", seed, list(config.seeds)),
    ):
        if value not in known:
            fix = f"Choose one of: {', '.join(map(str, known))}."
            raise FdamedError(f"the configuration has no {what} {value!r}", "command line", fix)
    return config.expanded_runs()[run]


def federate(config: Config, name: str, spec: Run, target: str, seed: int, threads: int) -> None:
    """Train, and write the run's folder."""
    import torch
    from safetensors.torch import save_file

    import fdamed.methods  # noqa: F401  (registers the methods)
    from fdamed.federation.loop import Checkpoints
    from fdamed.federation.loop import run as run_rounds
    from fdamed.federation.method import REGISTRY
    from fdamed.stages.own_models import keep, own_path, up_to_date

    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms imports the compiler: 2 s of CPU
    places = Places.of(config)
    folder = places.run(name, target, seed)
    method = REGISTRY[spec.method](**spec.options)
    model = resident(config)
    cohort = read_json(needed(places.root / "cohort.json", "split"))
    theta = weights_in(places.init(seed) / "theta.safetensors", "init", model.layout)
    conditions = fingerprint(config, name, spec, target, seed, threads, places)
    train = config.train_of(spec)
    net = network(config, spec, method, target, seed, model, threads)
    needed(places.root / "leakage.json", "guard")
    own = partial(up_to_date, config, method, net, own_path(places, target, name, target, seed))
    checkpoints = Checkpoints(
        folder / "state",
        lambda party, round: places.memory(party, name, target, seed, round),
        conditions,
        train.checkpoint_every,
    )
    try:
        final, record = run_rounds(
            method,
            net,
            theta,
            train.rounds,
            judge(config, spec, target, seed, model, own if method.keeps else None),
            checkpoints,
            train.evaluate_every,
        )
        if method.keeps:
            for party in config.cut.parties:
                keep(method, net, party, own_path(places, party, name, target, seed))
    finally:
        net.close()
    write_json(
        folder / "run.json", describe(config, name, spec, method, target, seed, model, conditions, cohort["hash"])
    )
    write_lines(folder / "metrics.jsonl", record.metrics)
    write_lines(folder / "timing.jsonl", record.timing)
    write_lines(folder / "ledger.jsonl", record.ledger)
    write_lines(folder / "layers.jsonl", record.layers)
    write_lines(folder / "absences.jsonl", record.absences)
    with atomic(folder / "theta.safetensors") as draft:
        save_file(method.named(final, model.layout), draft)
    write_text(folder / "done", digest_file(folder / "theta.safetensors") + "\n")
    checkpoints.clear((*net.sources, net.target))


def resident(config: Config) -> FlatModel:
    """The one model of this process."""
    from fdamed.models.backbone import build
    from fdamed.models.flat import FlatModel

    return FlatModel(build(config.model), device(config))


def device(config: Config) -> str:
    import torch

    if config.train.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if config.train.device == "cuda" and not torch.cuda.is_available():
        raise FdamedError("no CUDA device is to be seen", "train.device", "Use `auto` or `cpu`, or ask for a GPU node.")
    return config.train.device


def hospital(
    config: Config,
    spec: Run,
    party: str,
    target: str,
    seed: int,
    labels: bool,
    every: bool,
    model: FlatModel | None = None,
) -> Site:
    """Build one hospital from its own folder: a source with all its labels, or the target with few, none or all."""
    import fdamed.methods  # noqa: F401  (a hospital in a process of its own must know the steps)
    from fdamed.data.loader import load
    from fdamed.federation.site import Site
    from fdamed.models import heads
    from fdamed.models.flat import FlatModel

    folder = Places.of(config).party(party)
    needed(folder / "order.parquet", "cache")
    source = party != target
    auxiliary = spec.auxiliary if source else None
    train = config.train_of(spec)
    noise = 0.0 if source else config.noise_of(spec)
    read = partial(load, folder, heads=config.model.heads, races=config.model.races, noise=noise)
    if source or every:
        data: Any = read(splits=("train", "adapt"))
    elif labels:
        data = read(splits=("adapt",), limit=spec.labelled, seed=seed)
    else:
        data = read(splits=("train", "adapt")).without_labels()
    if isinstance(config.cut, Cut) and data.images.shape[1] != config.image.size:
        what = f"the cache holds images of {data.images.shape[1]} pixels, image.size is {config.image.size}"
        raise FdamedError(what, str(folder), "Run `fdamed cache` again for every hospital.")
    return Site(
        name=party,
        data=data,
        model=model or resident(config),
        recipe=train.source if source or every else train.target,
        seed=seed,
        release=frozenset(config.privacy.release),
        auxiliary=auxiliary,
        heads=FlatModel(heads.build(config.model), device(config)) if auxiliary else None,
        precision=train.precision,
    )


def network(
    config: Config, spec: Run, method: Method[Any], target: str, seed: int, model: FlatModel, threads: int
) -> Network:
    """All hospitals of the cohort, in this process or in one each, behind lines that fail where the study says so."""
    from fdamed.federation.unreliable import Unreliable

    net = _reliable(config, spec, method, target, seed, model, threads)
    train = config.train_of(spec)
    whole = Unreliable(net, train.unreliable, seed) if train.unreliable else net
    whole.invite(train.participation, seed)
    return whole


def _reliable(
    config: Config, spec: Run, method: Method[Any], target: str, seed: int, model: FlatModel, threads: int
) -> Network:
    from fdamed.federation.network import InProcess, Processes

    kind = type(method)
    build = partial(
        hospital, config, spec, target=target, seed=seed, labels=kind.target_labels, every=kind.every_target_label
    )
    if config.train.network == "in_process":
        return InProcess({p: build(p, model=model) for p in config.cut.parties}, target, kind.name)
    release = {p: frozenset(config.privacy.release) for p in config.cut.parties}
    builders = {p: partial(build, p) for p in config.cut.parties}
    return Processes(builders, target, model.layout, kind.name, release, threads)


def judge(config: Config, spec: Run, target: str, seed: int, model: FlatModel, own: Own | None = None) -> Judge:
    """Accuracy and AUC at the target's val and test splits; methods never see what this sees.

    Noise on the test images is the same in every round and for every method of a seed. `own`: the target's own model,
    where hospitals keep theirs; nothing is told as long as it has none.
    """
    from fdamed.data.loader import load
    from fdamed.evaluate.metrics import scores as scores_of
    from fdamed.seeds import stream
    from fdamed.train import predict

    folder, noise = Places.of(config).party(target), config.noise_of(spec)
    views = {split: load(folder, splits=(split,), noise=noise) for split in ("val", "test")}

    def scores(theta: Any) -> dict[str, float | None]:
        judged = own() if own else model
        if judged is None:
            return {}
        if judged is model:
            model.load(theta)
        out: dict[str, float | None] = {}
        for split, data in views.items():
            found = scores_of(data.y, predict(judged, data, rng=stream(seed, target, split, "noise")))
            out |= {f"{split}/acc": found["acc"], f"{split}/auc": found["auc"]}
        return out

    return scores


def fingerprint(
    config: Config, name: str, spec: Run, target: str, seed: int, threads: int, places: Places
) -> dict[str, Any]:
    """What must be the same when a checkpoint is taken up again."""
    import torch

    from fdamed.algebra.kernel import BUILD
    from fdamed.models import trunk

    data = {p: digest_file(needed(places.party(p) / "order.parquet", "cache")) for p in sorted(config.cut.parties)}
    return {
        "settings": digest(
            [config.model.model_dump(mode="json"), config.train.model_dump(mode="json"), spec.model_dump(mode="json")]
        ),
        "run": f"{name}/{target}/{seed}",
        "noise": config.noise_of(spec),
        "data": digest(data),
        "init": digest_file(places.init(seed) / "theta.safetensors"),
        "threads": threads,
        "torch": torch.__version__,
        "fdamed": __version__,
        "device": device(config),
        "sums": BUILD,
        "convolutions": trunk.BUILD if config.model.backbone == "cnn" else "torch",
    }


def describe(
    config: Config,
    name: str,
    spec: Run,
    method: Method[Any],
    target: str,
    seed: int,
    model: FlatModel,
    conditions: dict[str, Any],
    manifest: str,
) -> dict[str, Any]:
    """run.json: what this run was."""
    from fdamed.models.backbone import feature_size

    return {
        "cohort": config.cohort,
        "run": name,
        "method": spec.method,
        "title": type(method).title,
        "options": dataclasses.asdict(method),  # type: ignore[call-overload]  # every registered method is a dataclass
        "auxiliary": spec.auxiliary.model_dump(mode="json") if spec.auxiliary else None,
        "labelled": spec.labelled or config.cut.labelled,
        "target": target,
        "sources": sorted(p for p in config.cut.parties if p != target),
        "seed": seed,
        "noise": config.noise_of(spec),
        "rounds": method.length(config.train_of(spec).rounds),
        "train": config.train_of(spec).model_dump(mode="json"),
        "device": conditions["device"],
        "parameters": model.layout.trainable,
        "extra_parameters": method.extra_parameters(
            len(config.cut.parties) - 1, feature_size(config.model), config.model.classes
        ),
        "versions": {"fdamed": __version__, "torch": conditions["torch"]},
        "digests": {k: conditions[k] for k in ("settings", "data", "init")} | {"manifest": manifest},
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
    }
