"""The phases of a run: a warm-up by another method, the run's own method, and a second phase (`then`).

Each phase has its own clients (one may see no label where the next sees a few) and its own checkpoints, and starts from
the model of the one before. A warm-up is the beginning of the run itself: the method goes on with its round numbers,
random numbers, auxiliary heads and privacy account. A second phase has its own; its record is appended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fdamed.config.runs import MAIN, THEN, WARMUP, Run
from fdamed.config.study import Config, Train
from fdamed.core.rng import stream
from fdamed.federation.auxiliary_loss import log_auxiliary_loss
from fdamed.federation.client import Step, check_release
from fdamed.federation.method import REGISTRY, Method
from fdamed.federation.privacy_budget import FILE as ACCOUNT
from fdamed.federation.privacy_budget import SPENT, log_costs
from fdamed.federation.questions import Home
from fdamed.federation.runner import run as run_rounds
from fdamed.federation.server import Server
from fdamed.federation.storage.checkpoint import Checkpoints, Record
from fdamed.federation.transport.wire import ByteTransport, Wire
from fdamed.models.flat import FlatModel, without_heads
from fdamed.pipeline.clients import build_server, resident
from fdamed.pipeline.devices import without_gpu
from fdamed.pipeline.hospitals.homes import home_of, scores_at
from fdamed.pipeline.hospitals.site import study_digest
from fdamed.pipeline.privacy_costs import costs_of

if TYPE_CHECKING:
    from fdamed.pipeline.selection import StudyRun


@dataclass(frozen=True)
class Phase:
    """One method of a run."""

    name: str
    """`warmup`, `main` or `then`."""
    spec: Run
    method: Method[Any]
    train: Train

    @property
    def folder(self) -> str:
        """Where its checkpoints are, below those of the run."""
        return "" if self.name == MAIN else self.name


@dataclass(frozen=True)
class Job:
    """A run that is trained, and what its checkpoints must fit."""

    run: StudyRun
    threads: int
    model: FlatModel
    fingerprint: dict[str, Any]
    wire: Wire | None = None
    """To hospitals elsewhere; None: all are on this machine."""

    def memory(self, folder: str, client: str, file: str) -> Path:
        """A file of a client's state in a phase."""
        return self.run.places.memory(client, self.run.name, self.run.target, self.run.seed) / folder / file

    def named(self, path: Path, client: str) -> Path:
        """A file of a client as it is called in questions: below the client's own folder, wherever that is."""
        return path.relative_to(self.run.places.client(client))


@dataclass(frozen=True)
class Outcome:
    """What a phase leaves to the next."""

    final: Tensor
    record: Record
    costs: dict[str, Any]
    states: dict[str, dict[str, Any]]
    """Client -> the question with which it takes over its private auxiliary heads and privacy account."""
    behind: frozenset[str]
    """Clients whose state is older than their last answer."""


def phases(config: Config, spec: Run) -> tuple[Phase, ...]:
    """What an expanded run consists of."""
    return tuple(
        Phase(name, run, REGISTRY[run.method](**run.options), config.train_of(run))
        for name, run in config.phases(spec).items()
    )


def steps_of(config: Config, spec: Run) -> list[Step]:
    """The steps that an expanded run asks hospitals to run, in all of its phases."""
    return [step for phase in phases(config, spec) for step in phase.method.asks()]


def check_policies(job: Job, plan: Iterable[Phase]) -> None:
    """Refuse the whole run, before anything leaves a client, if a policy forbids a step of any phase."""
    config = job.run.config
    release = frozenset(config.privacy.release)
    for phase in plan:
        for step in phase.method.asks():
            check_release(step, release, next(iter(config.split.clients)), phase.spec.method)


def train(
    job: Job, plan: tuple[Phase, ...], theta: Tensor
) -> tuple[dict[str, Tensor], Record, list[int], dict[str, Any]]:
    """The last phase's model by name, the whole record, the rounds of each phase, and the sources' privacy costs.

    Shared auxiliary heads have done their work when the run's own method ends: a second phase and the model have none.
    """
    check_policies(job, plan)
    record, lengths = Record(), []
    costs: dict[str, Any] = {}
    warmup: Outcome | None = None
    for phase in plan:
        if phase.name == THEN and job.model.layout.heads:
            theta = without_heads({"x": theta}, job.model.layout)["x"]
            job = replace(job, model=resident(without_gpu(job.run.config) if job.wire else job.run.config))
        found = _one(job, phase, theta, record, warmup if phase.name == MAIN else None)
        join(record, found.record, len(record.metrics) if phase.name == THEN else 0)
        lengths.append(len(found.record.metrics))
        costs = found.costs or costs
        if phase.name == WARMUP:
            warmup = found
        if phase is not plan[-1]:
            theta = phase.method.handover(found.final, job.model.layout)
    tensors = plan[-1].method.named(found.final, job.model.layout)
    return without_heads(tensors, job.model.layout), record, lengths, costs


def _one(job: Job, phase: Phase, theta: Tensor, earlier: Record, warmup: Outcome | None) -> Outcome:
    """Train one phase; a client that was rejected `earlier` is as near to quarantine as it was."""
    one, config, method = job.run, job.run.config, phase.method
    done = len(earlier.metrics)
    shift = done if phase.name == THEN else 0  # a second phase counts its own rounds
    server, kept = _server(job, phase), checkpoints(job, phase)
    try:
        if job.wire:  # a hospital's process is older than this phase
            clients = (*server.sources, server.target)
            server.transport.inquire("load", {c: {"file": ""} for c in clients})
        server.validator.recall([line | {"round": line["round"] - shift} for line in earlier.absences])
        if warmup:
            server.validator.learn(earlier.validation)
            kept.behind |= warmup.behind
            server.transport.inquire("load", warmup.states)
        final, record = run_rounds(
            method,
            server,
            theta,
            phase.train.rounds,
            partial(scores_at, server),
            kept,
            phase.train.evaluate_every,
            phase.train.patience,
            _after(config, phase.spec),
            done - shift,
        )
        if method.keeps:
            own = {c: str(job.named(one.own_model(c), c)) for c in config.split.clients}
            server.transport.inquire("keep", {c: {"file": own[c], "names": list(method.keeps)} for c in own})
        costs = costs_of(config, phase.spec, server, kept, partial(_account, job, phase))
        carried = carried_states(job, server, kept) if phase.name == WARMUP else {}
    finally:
        server.close()
    return Outcome(final, record, costs, carried, frozenset(kept.behind))


def _after(config: Config, spec: Run) -> Callable[[Server], None] | None:
    """What is asked and logged after each round; under secure aggregation not the loss of each source's heads."""
    if config.differential_of(spec):
        return log_costs
    return log_auxiliary_loss if spec.auxiliary and not config.privacy.secure_aggregation else None


def home(job: Job, phase: Phase, client: str, model: FlatModel) -> Home:
    """What a client on this machine answers beside the steps."""
    folder = job.run.places.client(client)
    return home_of(job.run, phase.spec, phase.method, client, model, folder.joinpath, _account(job, phase, client))


def _server(job: Job, phase: Phase) -> Server:
    return build_server(
        job.run.config,
        phase.spec,
        phase.method,
        job.run.target,
        job.run.seed,
        job.model,
        job.threads,
        lambda client: job.memory(shared_folder(phase), client, "aside.safetensors"),
        stream_seed(job.run.seed, phase),
        partial(home, replace(job, wire=None), phase),
        job.wire,
        _address(job, phase) if job.wire else None,
    )


def stream_seed(seed: int, phase: Phase) -> int | None:
    """The seed of a phase that has random numbers of its own."""
    return stream(seed, THEN).key if phase.name == THEN else None


def shared_folder(phase: Phase) -> str:
    """The folder of a client's account and of its state while it is away: the same for a warm-up and its run."""
    return "" if phase.name == WARMUP else phase.folder


def _account(job: Job, phase: Phase, client: str) -> Path:
    return job.memory(shared_folder(phase), client, ACCOUNT)


def carried_states(job: Job, server: Server, kept: Checkpoints) -> dict[str, dict[str, Any]]:
    """What clients take from a warm-up into the run, as questions; of a process that has ended, what was saved last."""
    clients, names, out = (*server.sources, server.target), ["heads", SPENT], {}
    files = {c: str(job.named(job.memory(WARMUP, c, "carried.safetensors"), c)) for c in clients}
    saved = server.transport.inquire("save", {c: {"file": files[c], "names": names} for c in clients})
    for client in clients:
        last = str(kept.kept(client) or "") if client not in saved else files[client] if saved[client]["sha256"] else ""
        if last:
            out[client] = {"file": last, "names": names}
    return out


def checkpoints(job: Job, phase: Phase) -> Checkpoints:
    """Where a phase keeps its state."""
    record = job.memory(phase.folder, job.run.target, "record.jsonl")
    return Checkpoints(
        job.run.folder / "state" / phase.folder,
        lambda client, round: job.named(job.memory(phase.folder, client, f"{round:05d}.safetensors"), client),
        job.fingerprint,
        phase.train.checkpoint_every,
        record,
    )


def clear(job: Job, plan: Iterable[Phase]) -> None:
    """Remove the checkpoints of a finished run, and the states that its clients have saved."""
    for phase in plan:
        kept = checkpoints(job, phase)
        kept.clear()
        heads = {c: {"file": str(kept.memory(c, 0))} for c in job.run.config.split.clients}
        if job.wire:
            nothing = dict.fromkeys(heads, frozenset[str]())
            ByteTransport(job.wire, job.model.layout, nothing, _address(job, phase)).inquire("prune", heads)
        for client, head in heads.items() if not job.wire else ():
            for path in (job.run.places.client(client) / head["file"]).parent.glob("*.safetensors"):
                path.unlink()


def _address(job: Job, phase: Phase) -> dict[str, str]:
    """What every question over a wire says of the run that it belongs to."""
    return {"study": study_digest(job.run.config), "run": job.run.key, "phase": phase.name}


def join(record: Record, more: Record, done: int) -> None:
    """Append the record of a later phase, its rounds counted on from `done`."""
    for name, lines in vars(more).items():
        getattr(record, name).extend(line | {"round": line["round"] + done} for line in lines)
