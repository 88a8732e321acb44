"""Cross-fitting: one round of each method, measured on labeled images of the target that it did not train on.

This is the left side of the FedGP paper's Theorem 4.4, the target's loss after a step, measured instead of bounded. All
methods start from one model and run their own `round`, so steps have the lengths that they have in a run. In each fold
the target trains without that fold and then sends its mean loss on it: nothing leaves a client that does not leave it
in a run, but for this one number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fdamed.config.privacy import FOLDS
from fdamed.core.errors import FdamedError
from fdamed.core.rng import Stream
from fdamed.data.loader import Labeled
from fdamed.data.splitting.folds import folds_of
from fdamed.federation.absences import DroppedOut
from fdamed.federation.client import TRAINED, Step
from fdamed.federation.messages import marked
from fdamed.federation.method import Method, Model
from fdamed.federation.runner import healthy
from fdamed.federation.server import Server
from fdamed.federation.storage.answers import digest_of
from fdamed.federation.transport.base import Transport, Wrapper
from fdamed.theory.survey_client import HeldOut, measure_held_out


@dataclass(frozen=True, eq=False)
class CrossFit(Labeled):
    """The labeled images without one fold, and that fold."""

    held_out: Labeled | None = None


def is_candidate(kind: type[Method[Any]]) -> bool:
    """Whether a round of a method can be tried from any model: one model is all it starts from, and all it makes."""
    return kind.state is Model and kind.length == 1 and not (kind.every_target_label or kind.keeps or kind.parts)


def without_fold(data: Labeled, owner: NDArray[np.int64], fold: int, rng: Stream) -> CrossFit:
    """The images that the target trains on, and those of one fold, which it holds out; `owner` (n,): their patients."""
    folds = folds_of(data.y, owner, FOLDS, rng)
    if folds.max(initial=0) < FOLDS - 1:
        what = f"the labeled images are of fewer than {FOLDS} patients: they cannot be split in {FOLDS} folds"
        raise FdamedError(what, "advise", "Label more images, or raise split.labeled.")

    def part(rows: NDArray[np.bool_]) -> Labeled:
        auxiliary = {k: v[rows] for k, v in data.auxiliary.items()}
        return Labeled(data.images[rows], data.y[rows], auxiliary, data.noise)

    return CrossFit(**vars(part(folds != fold)), held_out=part(folds == fold))


class InFold(Wrapper):
    """The same sources in every fold, and the target of one fold, which ends with it."""

    def __init__(self, inner: Transport, target: Transport) -> None:
        super().__init__(inner)
        self._target = target

    def begin(self, round: int) -> None:
        super().begin(round)
        self._target.begin(round)

    def deliver(self, client: str, step: Step, nth: int, msg: Any) -> Any:
        return (self._target if client in self._target.names else self.inner).deliver(client, step, nth, msg)

    def close(self) -> None:
        self._target.close()


class TrialServer(Server):
    """A server that asks no client the same question twice, as several methods begin with the same.

    `known`: answers of the sources; they depend neither on the fold nor on the target's labels and noise.
    """

    def __init__(self, *arguments: Any, known: dict[str, Any], epochs: Mapping[str, int]) -> None:
        super().__init__(*arguments)
        self.images = 0
        """Images that went through the network for the answers so far."""
        self._known, self._own, self._epochs = known, dict[str, Any](), epochs

    def ask(self, client: str, step: Step, msg: Any) -> Any:
        key = self._key(client, step, msg)
        place = self._own if client == self.target else self._known
        if key not in place:
            place[key] = self._counted(client, step, super().ask(client, step, msg))
        return place[key]

    def ask_each(self, questions: Mapping[str, Any], step: Step) -> dict[str, Any]:
        out = {}
        for client in sorted(questions):
            try:
                out[client] = self.ask(client, step, questions[client])
            except DroppedOut:  # recorded by the server; a round goes on without this source
                continue
        return out

    def _key(self, client: str, step: Step, msg: Any) -> str:
        return f"{client} {self.round} {step.name} {[digest_of(getattr(msg, f.name)) for f in fields(msg)]}"

    def _counted(self, client: str, step: Step, reply: Any) -> Any:
        passes = self._epochs.get(client, 1) if step.released_kinds & TRAINED else 1
        self.images += passes * marked(reply, "images", 0)
        return reply


def drops(server: TrialServer, methods: Mapping[str, Method[Any]], theta: Tensor, round: int) -> dict[str, float]:
    """By how much each method's round lowers the loss of the fold that the target holds out."""

    def loss(x: Tensor) -> float:
        answer: HeldOut = server.ask(server.target, measure_held_out, Model(x=x))
        return answer.loss

    out = {}
    for name, method in methods.items():
        server.begin(round, round)
        before = loss(theta)
        state = healthy(method.round(method.start(theta), server), server.layout)
        out[name] = before - loss(method.final(state))
    return out
