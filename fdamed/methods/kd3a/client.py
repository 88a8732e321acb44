"""KD3A's steps inside a client: a source trains its model; the target votes, distills, weights and averages."""

from __future__ import annotations

from typing import Annotated, cast

import torch
from torch import Tensor, nn

from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Check, Count, Individual, Scalar, Statistic, Weights, message
from fdamed.federation.method import Model
from fdamed.methods._shared.local_training import Trained, finite, train_locally
from fdamed.methods.kd3a import consensus
from fdamed.methods.kd3a.distillation import distil, outputs
from fdamed.models.backbone import initialize
from fdamed.models.flat import checksum, head_of, norm_pairs, with_head
from fdamed.ops.aggregation import mean

LOW = 0.001
"""Weight, in the paper, of an image for which no teacher is confident."""
SMOOTHING = 0.9
"""Share of the last round's weights in the released code."""


@message
class SourceTask:
    """The model to train; `own_head` (0 or 1): with the head that the source remembers."""

    x: Weights
    pace: Scalar
    own_head: Count


@message
class Checksum:
    """Of the model that the target should remember."""

    checksum: Count


@message
class Confirmation:
    yes: Count


@message
class Teachers:
    """The sources' models (K, P) with their N_k and last weights (K + 1,); `paper` and `own_head` are 0 or 1."""

    teachers: Individual
    n: Statistic
    old: Statistic
    gate: Scalar
    pace: Scalar
    paper: Count
    own_head: Count


@message
class Average:
    """The average h with its weights alpha (K + 1,), the target's last; `passed`: share of images with a vote."""

    x: Weights
    alpha: Annotated[Statistic, Check(shape=lambda ask, _: (len(ask.teachers) + 1,), dtype=torch.float64)]
    passed: Scalar
    loss: Scalar
    steps: Count
    skipped: Count


@step("kd3a.train_source", noised=True)
def train_source(client: Client, ask: SourceTask) -> Trained:
    """Local training at the round's pace, with the source's own head where heads are local."""
    slower = client.with_recipe(lr=client.recipe.lr * ask.pace)
    if not ask.own_head:
        return cast(Trained, train_locally.run(slower, Model(x=ask.x)))
    head = client.memory["kd3a.head"] if "kd3a.head" in client.memory else _first_head(client)
    x = with_head(ask.x, head, client.model.layout)
    trained = cast(Trained, train_locally.run(slower, Model(x=x)))
    client.memory["kd3a.head"] = head_of(trained.x, client.model.layout)
    return trained


def _first_head(client: Client) -> Tensor:
    """A source's own first head: no model with another head is ever sent to it."""
    initialize(cast(nn.Module, client.model.module.head), stream(client.seed, client.name, "kd3a.head").torch)
    return head_of(client.model.read(), client.model.layout)


@step("kd3a.report_state")
def report_state(client: Client, ask: Checksum) -> Confirmation:
    """Whether the target remembers the model of this checksum."""
    return Confirmation(yes=int("kd3a.h" in client.memory and checksum(client.memory["kd3a.h"]) == ask.checksum))


@step("kd3a.receive_model")
def receive_model(client: Client, ask: Model) -> Confirmation:
    """Remember this model."""
    client.memory["kd3a.h"] = ask.x.clone()
    return Confirmation(yes=1)


@step("kd3a.distill")
def distill(client: Client, ask: Teachers) -> Average:
    """Knowledge vote, distillation, consensus focus, average: sections 3.1 to 3.3 of the paper."""
    if len(client.data) == 0:
        raise FdamedError("there is no image to vote on", f"hospital {client.name}", "Give the target some images.")
    layout, slower = client.model.layout, client.with_recipe(lr=client.recipe.lr * ask.pace)
    # The released code lets the voting models' BatchNorms adapt to the target's batches.
    q, buffers = outputs(client, ask.teachers, adapt=not ask.paper)
    v = consensus.vote(q, ask.gate)
    agreed = v.supporters > 0
    if ask.paper:
        label, weight = v.p, torch.where(agreed, v.supporters, LOW)
    else:
        label, weight = nn.functional.one_hot(v.label, q.shape[2]), agreed
    client.model.load(client.memory["kd3a.h"])
    d = distil(slower, label.float(), weight.float(), mixup=not ask.paper)
    student = client.model.read()

    passed = float(agreed.double().mean())
    if ask.paper:
        focus = consensus.marginal_focus(q, ask.gate, LOW)
        alpha = consensus.weights_by_samples(focus, ask.n.tolist(), len(client.data))
    else:
        focus = consensus.shapley_focus(q, ask.gate, client.rng.child("orders").numpy)
        alpha = consensus.weights_by_confidence(focus, passed)
    alpha = consensus.smoothed(alpha, ask.old, 0.0 if ask.paper else SMOOTHING)

    h = mean([*ask.teachers, student], alpha)
    buffers = torch.vstack([buffers, student[layout.trainable :]])
    h[layout.trainable :] = consensus.average_buffers(buffers, alpha, norm_pairs(layout) if ask.paper else ())
    if ask.own_head:
        h = with_head(h, head_of(student, layout), layout)
    client.memory["kd3a.h"] = h.clone()
    return Average(x=h, alpha=alpha, passed=passed, loss=finite(client, d.loss), steps=d.steps, skipped=d.skipped)
