"""What a run is made of: the model of this process, the clients behind a transport, and their evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import fdamed.methods  # noqa: F401  (a client in its own process must know the steps)
from fdamed.config.base import without_defaults
from fdamed.config.runs import Run
from fdamed.config.split import Split
from fdamed.config.study import Config
from fdamed.core.environment import keep_memory
from fdamed.core.errors import FdamedError
from fdamed.core.files import digest, read_json
from fdamed.core.parts import TRAINED
from fdamed.core.rng import stream
from fdamed.data.loader import load, patients
from fdamed.evaluation.metrics import scores as scores_of
from fdamed.federation.client import Client, Step
from fdamed.federation.method import Method
from fdamed.federation.privacy_budget import FILE
from fdamed.federation.questions import Home
from fdamed.federation.runner import Judge
from fdamed.federation.server import Server
from fdamed.federation.storage.answers import Answers
from fdamed.federation.transport.base import InProcess, Transport
from fdamed.federation.transport.faulty import Faulty
from fdamed.federation.transport.multiprocess import Processes
from fdamed.federation.transport.on_demand import OnDemand
from fdamed.federation.transport.wire import ByteTransport, Wire
from fdamed.models import heads
from fdamed.models.backbone import build
from fdamed.models.flat import AUXILIARY, FlatModel
from fdamed.pipeline.devices import device
from fdamed.pipeline.fingerprint import machine, step_code
from fdamed.pipeline.hospitals.facts import fact_of
from fdamed.pipeline.paths import Places, needed
from fdamed.training.dp_sgd import Mechanism, accountants
from fdamed.training.input import share_device
from fdamed.training.local import predict
from fdamed.training.precision import allow_tf32

if TYPE_CHECKING:
    from fdamed.federation.secure_sums.certificates import Certificates

Own = Callable[[torch.Tensor], FlatModel | None]
"""The model that predicts after a round that ended with these weights; None: it is not complete yet."""
Homes = Callable[[str, FlatModel], Home]
"""(client, the model of its process) -> what it answers beside the steps."""


def resident(config: Config, spec: Run | None = None) -> FlatModel:
    """The one model of this process, which all its clients use; with the auxiliary heads that the run `spec` shares."""
    keep_memory()
    allow_tf32("float32")  # a client's training may allow it
    apart = config.train.transport == "multiprocess"
    share_device(config.train.jobs_per_gpu * (1 + len(config.split.clients) if apart else 1))
    network = build(config.model)
    if spec and spec.auxiliary and spec.auxiliary.share:
        network.add_module(AUXILIARY, heads.build(config.model, spec.auxiliary.heads))
    return FlatModel(network, device(config))


def build_client(
    config: Config,
    spec: Run,
    client: str,
    target: str,
    seed: int,
    labels: bool,
    every: bool,
    model: FlatModel | None = None,
    stream_seed: int | None = None,
    account: Path | None = None,
    answers: Answers | None = None,
    certificates: Certificates | None = None,
) -> Client:
    """Build one client from its own folder: a source with all its labels, or the target with few, none or all.

    `seed` decides which images are labeled, `stream_seed` the random numbers of a phase that has its own.
    `account`: the file in which a source records the cost of secure noise. `answers`: what is the same for all clients
    that remember answers. `certificates`: what a hospital on a network signs its keys with.
    """
    folder = Places.of(config).client(client)
    needed(folder / "order.parquet", "cache")
    source = client != target
    auxiliary = spec.auxiliary if source else None
    train = config.train_of(spec)
    model = model or resident(config, spec)
    allow_tf32(train.precision)
    pixels = 0.0 if source else config.noise_of(spec)
    read = partial(load, folder, heads=config.model.heads, races=config.model.races, noise=pixels)
    if source or every:
        data: Any = read(parts=("train", "adapt"))
    elif labels:
        data = read(parts=("adapt",), limit=spec.labeled, seed=seed)
    else:
        data = read(parts=("train", "adapt")).without_labels()
    if isinstance(config.split, Split) and data.images.shape[1] != config.image.size:
        what = f"the cache holds images of {data.images.shape[1]} pixels, image.size is {config.image.size}"
        raise FdamedError(what, str(folder), "Run `fdamed cache` again for every hospital.")
    noise = _mechanism(config, spec, folder) if source else None
    return Client(
        name=client,
        role="source" if source else "target",
        data=data,
        model=model,
        recipe=train.source if source or every else train.target,
        seed=seed if stream_seed is None else stream_seed,
        release=frozenset(config.privacy.release),
        auxiliary=auxiliary,
        heads=FlatModel(heads.build(config.model), device(config)) if auxiliary and not auxiliary.share else None,
        precision=train.precision,
        smallest_batch=config.smallest_batch,
        minimum=config.minimum,
        sums_only=config.privacy.secure_aggregation,
        certificates=certificates,
        noise=noise,
        account=account if noise and noise.secure else None,
        answers=answers.at(folder / "answers") if answers else None,
    )


def check_heads(config: Config, run: str, spec: Run, target: str) -> None:
    """Raise if no source has a label for one of the run's auxiliary heads: nothing would ever train it."""
    wanted = spec.auxiliary.heads if spec.auxiliary else ()
    known = [fact_of(config, client, "heads") for client in config.split.clients if client != target and wanted]
    for head in wanted:
        if not any(head in heads for heads in known):
            raise FdamedError(
                f"no source has a label for the auxiliary head {head}",
                f"runs.{run}.auxiliary",
                f"Remove {head} from the run's heads, or give the data set's {head}.",
            )


def _mechanism(config: Config, spec: Run, folder: Path) -> Mechanism | None:
    """Differential privacy of a source's training, if configured."""
    wanted = config.differential_of(spec)
    if wanted is None:
        return None
    accountants()  # fails at once without Opacus
    owners = patients(folder, ("train", "adapt"))
    return Mechanism(wanted.multiplier, wanted.clip, owners, wanted.delta, wanted.secure)


def build_server(
    config: Config,
    spec: Run,
    method: Method[Any],
    target: str,
    seed: int,
    model: FlatModel,
    threads: int,
    aside: Callable[[str], Path],
    stream_seed: int | None = None,
    homes: Homes | None = None,
    wire: Wire | None = None,
    address: Mapping[str, Any] | None = None,
) -> Server:
    """All clients, in this process, in one each, or behind a wire, with simulated faults if configured.

    `aside`: the file with the state of a client that is not resident. `homes`: what clients answer beside the steps.
    `address`: the run and phase that questions over a wire belong to.
    """
    own = seed if stream_seed is None else stream_seed
    kind = type(method)
    labels, every, train = kind.target_labels, kind.every_target_label, config.train_of(spec)
    client = partial(build_client, config, spec, target=target, seed=seed, labels=labels, every=every, stream_seed=own)
    reach: Transport
    if wire:
        release = {p: frozenset(fact_of(config, p, "release")) for p in config.split.clients}
        reach = ByteTransport(wire, model.layout, release, address)
    else:
        client = partial(client, answers=remembered(config, spec, method.steps, threads))
        reach = transport(config, kind.name, model, threads, client, aside, homes=homes)
    if train.faults:
        reach = Faulty(reach, train.faults, target, own)
    if config.privacy.secure_aggregation:
        from fdamed.federation.secure_sums.transport import SecureSums

        reach = SecureSums(reach, target, getattr(method, "weighting", "samples"))
    server = Server(reach, target, kind.name, train.validation, train.quorum)
    server.unlogged = frozenset(kind.compares if config.privacy.secure_aggregation else ())
    declare(config, server)
    server.invite(train.participation, own)
    return server


def remembered(config: Config, spec: Run, steps: Iterable[Step], threads: int) -> Answers | None:
    """How the clients of a run remember answers to these steps, each below its own folder; under noise none does."""
    if not config.answers_mb or config.differential_of(spec):
        return None
    precision = config.train_of(spec).precision
    decides = [without_defaults(config.model), machine(config, threads, precision), np.__version__]
    limit = config.answers_mb * 10**6 // len(config.split.clients)
    return Answers(Path(), limit, digest(decides), {step.name: step_code(step) for step in steps})


def declare(config: Config, server: Server) -> None:
    """Give validation what clients declare: training images, which no answer may exceed, and their label rates.

    Label rates only where directions are checked, and only of patients: a public set is partitioned as its study wants.
    """
    clients = read_json(needed(Places.of(config).root / "cohort.json", "split"))["clients"]
    images = {p: sum(int(clients[p]["images"].get(part, 0)) for part in TRAINED) for p in config.split.clients}
    server.validator.images = images
    if isinstance(config.split, Split) and server.validator.settings.directions:
        known = {p: fact_of(config, p, "positives") for p in images if images[p]}
        rates = {p: positives / images[p] for p, positives in known.items() if positives is not None}
        server.validator.class_shares = {p: (1.0 - rate, rate) for p, rate in rates.items()}


def transport(
    config: Config,
    method: str,
    model: FlatModel,
    threads: int,
    build: Callable[..., Client],
    aside: Callable[[str], Path],
    names: Iterable[str] = (),
    homes: Homes | None = None,
) -> InProcess | Processes:
    """All clients (or `names`), here or in a process each; `build(client=..., account=..., model=...)` makes one."""
    release = frozenset(config.privacy.release)
    clients = tuple(names) or config.split.clients
    builders = {p: partial(build, client=p, account=aside(p).with_name(FILE)) for p in clients}
    if config.train.transport == "in_process":
        sharing = {p: partial(builder, model=model) for p, builder in builders.items()}
        here = {p: homes(p, model) for p in clients} if homes else None
        return OnDemand(sharing, model.layout, release, aside, homes=here)
    there = {p: partial(_home_of, homes, p) for p in clients} if homes else None
    return Processes(builders, model.layout, method, dict.fromkeys(builders, release), threads, there)


def _home_of(homes: Homes, name: str, client: Client) -> Home:
    """The home of a client in its own process."""
    return homes(name, client.model)


def judge(
    config: Config,
    spec: Run,
    target: str,
    seed: int,
    model: FlatModel,
    own: Own | None = None,
    parts: tuple[str, ...] = ("val", "test"),
) -> Judge:
    """Accuracy and AUC at the target's val and test parts, which methods never see.

    Noise on the test images is the same in every round and for every method of a seed. `own`: the model that predicts,
    if it is not the bare network; without scores as long as there is none.
    """
    folder, noise = Places.of(config).client(target), config.noise_of(spec)
    views = {part: load(folder, parts=(part,), noise=noise) for part in parts}

    def scores(theta: Any) -> dict[str, float | None]:
        judged = own(theta) if own else model
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
