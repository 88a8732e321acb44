"""The phases of a run: a warm-up by another method, the run's own method, and a second phase (`then`).

Each phase has its own clients (one may see no label where the next sees a few) and its own checkpoints, and starts from
the model of the one before. A warm-up is the beginning of the run itself: the method goes on with its round numbers,
random numbers, auxiliary heads and privacy account. A second phase has its own; its record is appended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fdamed.config.runs import MAIN, THEN, WARMUP, Run
from fdamed.config.study import Config, Train
from fdamed.core.rng import stream
from fdamed.federation.auxiliary_loss import log_auxiliary_loss
from fdamed.federation.client import check_release
from fdamed.federation.method import REGISTRY, Method
from fdamed.federation.privacy_budget import SPENT, log_costs
from fdamed.federation.runner import run as run_rounds
from fdamed.federation.server import Server
from fdamed.federation.storage.checkpoint import Checkpoints, Record
from fdamed.federation.storage.client_state import pack_state, read_state, unpack_state, write_state
from fdamed.models.backbone import build
from fdamed.models.flat import FlatModel, without_heads
from fdamed.pipeline.clients import Own, build_server, judge, resident
from fdamed.pipeline.devices import device
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

    def memory(self, folder: str, client: str, file: str) -> Path:
        """A file of a client's state in a phase."""
        return self.run.places.memory(client, self.run.name, self.run.target, self.run.seed) / folder / file


@dataclass(frozen=True)
class Outcome:
    """What a phase leaves to the next."""

    final: Tensor
    record: Record
    costs: dict[str, Any]
    states: dict[str, bytes]
    """Client -> its private auxiliary heads and privacy account."""
    behind: frozenset[str]
    """Clients whose state is older than their last answer."""


def phases(config: Config, spec: Run) -> tuple[Phase, ...]:
    """What an expanded run consists of."""
    return tuple(
        Phase(name, run, REGISTRY[run.method](**run.options), config.train_of(run))
        for name, run in config.phases(spec).items()
    )


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
            job = replace(job, model=resident(job.run.config))
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
        server.validator.recall([line | {"round": line["round"] - shift} for line in earlier.absences])
        if warmup:
            server.validator.learn(earlier.validation)
            kept.behind |= warmup.behind
            for client, state in warmup.states.items():
                server.transport.restore(client, state)
        final, record = run_rounds(
            method,
            server,
            theta,
            phase.train.rounds,
            judge(
                config,
                phase.spec,
                one.target,
                one.seed,
                job.model,
                predicting(config, method, server),
                ("val",) if one.candidate_of else ("val", "test"),
            ),
            kept,
            phase.train.evaluate_every,
            phase.train.patience,
            log_costs if config.differential_of(phase.spec) else log_auxiliary_loss if phase.spec.auxiliary else None,
            done - shift,
        )
        if method.keeps:
            for client in config.split.clients:
                write_state(_own_model(server, client, method), one.own_model(client))
        costs = costs_of(config, phase.spec, server, partial(job.memory, _shared(phase)), kept)
        left = (carried_states(server, kept), frozenset(kept.behind)) if phase.name == WARMUP else ({}, frozenset())
    finally:
        server.close()
    return Outcome(final, record, costs, *left)


def _own_model(server: Server, client: str, method: Method[Any]) -> bytes:
    """What a client keeps as its own model, without auxiliary heads."""
    state = server.transport.state(client, method.keeps) or b""
    return pack_state(without_heads(unpack_state(state, f"client {client}"), server.layout)) if state else b""


def predicting(config: Config, method: Method[Any], server: Server) -> Own | None:
    """The model that predicts, if it is not the bare network: the target's own, or the shared one with its parts."""

    def whole(final: Tensor) -> FlatModel | None:
        if not method.keeps:
            return whole_model(config, method, without_heads(method.named(final, server.layout), server.layout))
        state = _own_model(server, server.target, method)
        return whole_model(config, method, unpack_state(state, f"client {server.target}"))

    return whole if method.keeps or method.parts else None


def whole_model(config: Config, method: Method[Any], tensors: Mapping[str, Tensor]) -> FlatModel | None:
    """The model of these tensors, which are more than the network's; None if a part of it is missing."""
    module = method.predictor(build(config.model), tensors)
    return FlatModel(module, device(config)) if module else None


def _server(job: Job, phase: Phase) -> Server:
    return build_server(
        job.run.config,
        phase.spec,
        phase.method,
        job.run.target,
        job.run.seed,
        job.model,
        job.threads,
        lambda client: job.memory(_shared(phase), client, "aside.safetensors"),
        stream(job.run.seed, THEN).key if phase.name == THEN else None,
    )


def _shared(phase: Phase) -> str:
    """The folder of a client's account and of its state while it is away: the same for a warm-up and its run."""
    return "" if phase.name == WARMUP else phase.folder


def carried_states(server: Server, kept: Checkpoints) -> dict[str, bytes]:
    """What clients take from a warm-up into the run; of a process that has ended, what was saved last."""
    names, out = ("heads", SPENT), {}
    for client in (*server.sources, server.target):
        state, last = server.transport.state(client, names), kept.kept(client)
        if state is None and last:
            state = pack_state(read_state(last), names)
        if state:
            out[client] = state
    return out


def checkpoints(job: Job, phase: Phase) -> Checkpoints:
    """Where a phase keeps its state."""
    return Checkpoints(
        job.run.folder / "state" / phase.folder,
        lambda client, round: job.memory(phase.folder, client, f"{round:05d}.safetensors"),
        job.fingerprint,
        phase.train.checkpoint_every,
        job.memory(phase.folder, job.run.target, "record.jsonl"),
    )


def join(record: Record, more: Record, done: int) -> None:
    """Append the record of a later phase, its rounds counted on from `done`."""
    for name, lines in vars(more).items():
        getattr(record, name).extend(line | {"round": line["round"] + done} for line in lines)
