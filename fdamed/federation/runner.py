"""The run of one method: rounds, checkpoints, scores. Killed anywhere and resumed, it ends with the same bits."""

from __future__ import annotations

import dataclasses
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from fdamed.core.errors import FdamedError
from fdamed.core.progress import track
from fdamed.core.signals import Stopped, stop
from fdamed.federation.absences import DroppedOut, Reason
from fdamed.federation.messages import kinds
from fdamed.federation.method import Method
from fdamed.federation.server import Server
from fdamed.federation.storage.answers import Took
from fdamed.federation.storage.checkpoint import Checkpoints, Record
from fdamed.models.flat import Layout

Judge = Callable[[Tensor], Mapping[str, float | None]]
"""Scores of a model on data that no method sees."""
LOSS = "train/loss"
log = logging.getLogger(__name__)


def run(
    method: Method[Any],
    server: Server,
    theta: Tensor,
    rounds: int,
    judge: Judge,
    checkpoints: Checkpoints | None = None,
    judge_every: int = 1,
    patience: int | None = None,
    after: Callable[[Server], None] | None = None,
    done: int = 0,
) -> tuple[Tensor, Record]:
    """Run `method` from `theta` to the end, from the last checkpoint where there is one.

    With `patience` it ends after so many rounds without a new lowest training loss. `after` may ask and log more once
    a round is done. `done`: rounds that came before `theta`; the next is the first.
    """
    rounds *= method.length
    for step in method.asks():
        for client in (*server.sources, server.target):
            server.check_release(client, step)
    state, record = method.start(theta), Record()
    found = checkpoints.load(method, server) if checkpoints else None
    if found:
        done, state, record = found
        server.validator.recall(record.absences)
        server.validator.learn(record.validation)
        log.info("resumed after round %d of %d", done, rounds)
    if checkpoints:
        checkpoints.check_room(state)
    watched, on_disk, answered = sys.stderr.isatty(), done, done > 0
    ahead = range(done + 1, rounds + 1) if not spent(record.metrics, patience) else range(0)
    for round in track(ahead, f"{server.method} at {server.target}") if watched else ahead:
        begin, used, started = (
            time.perf_counter(),
            time.process_time(),
            datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        server.begin(round, rounds)
        if server.sources and len(server.quarantined) == len(server.sources):
            raise _nobody_left(server)
        stop.at_once(on_disk == round - 1)
        try:
            state = healthy(method.round(state, server), server.layout)
        except DroppedOut as absent:
            server.notes["lost"] = 1.0
            log.warning("round %d is lost: %s", round, absent)
        answered = answered or server.usable > 0
        if after:
            after(server)
        seconds, cpu = time.perf_counter() - begin, time.process_time() - used
        line: dict[str, Any] = {"round": round, **server.summary()}
        last = round == rounds or spent([*record.metrics, line], patience)
        judged = judge(method.final(state)) if round % judge_every == 0 or last else {}
        stop.at_once(False)
        record.metrics.append(line | dict(judged))
        record.layers += server.layer_notes
        record.absences += server.absences
        server.validator.recall(server.absences)
        server.absences.clear()
        record.validation += server.validator.news()
        spent_now = {"round": round, "started": started, "seconds": round_to(seconds), "cpu": round_to(cpu)}
        record.timing.append(spent_now | remembered_times(server.transport.remembered))
        record.ledger += server.ledger.settle()
        if checkpoints and (round % checkpoints.every == 0 or last or stop.asked):
            checkpoints.save(round, state, server, record)
            on_disk = round
        if not watched:
            _log_round(round, rounds, record)
        if last and round < rounds:
            log.info("stopped after %d rounds without a lower training loss", patience)
            break
        if stop.asked and not last:
            raise Stopped
    if (record.absences and not answered) or all(m.get("lost") for m in record.metrics):
        raise FdamedError(
            "every round was lost: the target, or a quorum of sources, never gave a usable answer",
            f"{server.method}, target {server.target}",
            "The run's log has the reasons; nothing was learned, so nothing is scored.",
        )
    return method.final(state), record


def healthy(state: Any, layout: Layout) -> Any:
    """The state after a round; one that is not finite, or has a negative variance, loses the round.

    A variance of 0, to which that of a dead channel may round, becomes the smallest positive number.
    """
    places = layout.variances
    for name, kind in kinds(type(state)).items():
        value = getattr(state, name)
        if isinstance(value, Tensor):
            if value.is_floating_point() and not torch.isfinite(value.sum()) and not torch.isfinite(value).all():
                raise DroppedOut("server", f"{name} of the model has entries that are not finite", Reason.AGGREGATE)
            if kind == "weights" and len(places) and float(value[places].min()) <= 0.0:
                if float(value[places].min()) < 0.0:
                    raise DroppedOut("server", "the model has a negative running variance", Reason.AGGREGATE)
                value = value.clone()
                value[places] = value[places].clamp(min=torch.finfo(value.dtype).tiny)
                state = dataclasses.replace(state, **{name: value})
    return state


def _nobody_left(server: Server) -> FdamedError:
    strikes = server.validator.settings.strikes
    return FdamedError(
        f"all {len(server.sources)} sources are quarantined after rejected updates in {strikes} rounds",
        f"{server.method}, target {server.target}, round {server.round}",
        "The reasons are in absences.jsonl and in the log; docs/explanation/validation.md explains the checks.",
    )


def spent(metrics: Sequence[Mapping[str, Any]], patience: int | None) -> bool:
    """Whether the last `patience` rounds have all been without a new lowest training loss."""
    if patience is None or len(metrics) <= patience:
        return False
    losses = [float("inf") if m.get(LOSS) is None else float(m[LOSS]) for m in metrics]
    if min(losses) == float("inf") and not all(m.get("lost") for m in metrics):
        raise FdamedError(
            f"none of {patience} rounds has logged a training loss",
            "train.patience",
            "Remove `patience` from this run: its method logs no training loss.",
        )
    return min(losses[-patience:]) >= min(losses[:-patience]) < float("inf")


def remembered_times(took: Sequence[Took]) -> dict[str, Any]:
    """What timing.jsonl says of the remembered answers of a round: how many, and the time that they had taken."""
    if not took:
        return {}
    seconds, cpu = (round_to(sum(column)) for column in zip(*took, strict=True))
    return {"remembered": len(took), "remembered_seconds": seconds, "remembered_cpu": cpu}


def round_to(seconds: float) -> float:
    return float(f"{seconds:.4f}")


def _log_round(round: int, rounds: int, record: Record) -> None:
    seconds = [t["seconds"] for t in record.timing]
    line = record.metrics[-1]
    shown = f"{LOSS} {line[LOSS]:.3f}" if line.get(LOSS) is not None else ""  # scores stay with the target
    left = sum(seconds) / len(seconds) * (rounds - round)
    count = record.timing[-1].get("remembered")
    known = f"  {count} answers remembered" if count else ""
    log.info("round %d/%d  %s%s  %.1f s  about %.0f s left", round, rounds, shown, known, seconds[-1], left)
