"""The phases of a run: its method, and where it has a `then`, another one that goes on with the first one's model.

A phase is a run like any other: its own hospitals (the first may see no label where the second sees a few), its own
random numbers, its own checkpoints. Their records become one, with the rounds numbered on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdamed.config.runs import Run
from fdamed.config.study import Config, Train
from fdamed.pipeline.clients import judge, network
from fdamed.pipeline.paths import Places
from fdamed.pipeline.personalized_models import keep, own_path, predicting
from fdamed.pipeline.privacy_costs import costs_of

if TYPE_CHECKING:
    from torch import Tensor

    from fdamed.federation.checkpoint import Checkpoints, Record
    from fdamed.federation.method import Method
    from fdamed.models.flat import FlatModel


@dataclass(frozen=True)
class Phase:
    """One method of a run; `name` is empty for the first, which has the run's own seed and folders."""

    name: str
    spec: Run
    method: Method[Any]
    train: Train


@dataclass(frozen=True)
class Job:
    """One run, target and seed of a study, and what its checkpoints must fit."""

    config: Config
    run: str
    target: str
    seed: int
    threads: int
    model: FlatModel
    fingerprint: dict[str, Any]

    @property
    def places(self) -> Places:
        return Places.of(self.config)

    def memory(self, phase: Phase, client: str, file: str) -> Path:
        """A file of a hospital's memory in this phase."""
        folder = self.places.memory(client, self.run, self.target, self.seed)
        return folder / phase.name / file


def phases(config: Config, spec: Run) -> tuple[Phase, ...]:
    """What an expanded run consists of."""
    import fdamed.methods  # noqa: F401  (registers the methods)
    from fdamed.federation.method import REGISTRY

    runs = config.phases(spec)
    return tuple(
        Phase(name, run, REGISTRY[run.method](**run.options), config.train_of(run))
        for name, run in zip(("", "then"), runs, strict=False)
    )


def check_policies(job: Job, plan: Iterable[Phase]) -> None:
    """Refuse the whole run, before anything leaves a hospital, if a policy forbids a step of any phase."""
    from fdamed.federation.client import check_release

    release = frozenset(job.config.privacy.release)
    for phase in plan:
        for step in phase.method.asks():
            check_release(step, release, next(iter(job.config.split.clients)), phase.spec.method)


def train(job: Job, plan: tuple[Phase, ...], theta: Tensor) -> tuple[Tensor, Record, list[int], dict[str, Any]]:
    """The last phase's model, the whole record, how many rounds each phase took, and what noise cost the sources."""
    from fdamed.federation.checkpoint import Record

    check_policies(job, plan)
    record = Record()
    lengths: list[int] = []
    costs: dict[str, Any] = {}
    for phase in plan:
        done = sum(lengths)
        earlier = [line | {"round": line["round"] - done} for line in record.absences]  # before this phase's round 1
        final, told, spent = _one(job, phase, theta, earlier)
        costs = costs or spent
        join(record, told, done)
        lengths.append(len(told.metrics))
        if phase is not plan[-1]:
            theta = phase.method.handover(final, job.model.layout)
    return final, record, lengths, costs


def _one(job: Job, phase: Phase, theta: Tensor, earlier: list[dict[str, Any]]) -> tuple[Tensor, Record, dict[str, Any]]:
    """Train one phase; who was rejected in an `earlier` one is as near to quarantine as it was."""
    from fdamed.core.rng import stream
    from fdamed.federation.privacy_budget import log_costs
    from fdamed.federation.runner import run as run_rounds

    config, method, own_stream = job.config, phase.method, None
    if phase.name:
        own_stream = stream(job.seed, phase.name).key
    server = network(
        config,
        phase.spec,
        method,
        job.target,
        job.seed,
        job.model,
        job.threads,
        lambda client: job.memory(phase, client, "aside.safetensors"),
        own_stream,
    )
    server.validator.recall(earlier)
    kept = checkpoints(job, phase)
    own = predicting(config, method, server, own_path(job.places, job.target, job.run, job.target, job.seed))
    try:
        final, record = run_rounds(
            method,
            server,
            theta,
            phase.train.rounds,
            judge(config, phase.spec, job.target, job.seed, job.model, own),
            kept,
            phase.train.evaluate_every,
            phase.train.patience,
            log_costs if config.differential_of(phase.spec) else None,
        )
        if method.keeps:
            for client in config.split.clients:
                keep(method, server, client, own_path(job.places, client, job.run, job.target, job.seed))
        costs = costs_of(config, phase.spec, server, lambda client, file: job.memory(phase, client, file), kept)
    finally:
        server.close()
    return final, record, costs


def checkpoints(job: Job, phase: Phase) -> Checkpoints:
    """Where a phase keeps its state."""
    from fdamed.federation.checkpoint import Checkpoints

    folder = job.places.run(job.run, job.target, job.seed) / "state" / phase.name
    return Checkpoints(
        folder,
        lambda client, round: job.memory(phase, client, f"{round:05d}.safetensors"),
        job.fingerprint,
        phase.train.checkpoint_every,
    )


def join(record: Record, more: Record, done: int) -> None:
    """Append what a later phase tells, its rounds counted on from `done`."""
    for name, lines in vars(more).items():
        getattr(record, name).extend(line | {"round": line["round"] + done} for line in lines)
