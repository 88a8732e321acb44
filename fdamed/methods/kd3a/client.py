"""Learning from what other hospitals' models agree on (KD3A, Feng et al., ICML 2021): the target's side of a block.

The single models of the sources vote on the target's images; the target distils the vote into its own model h_{K+1},
weighs all K + 1 by the consensus focus and averages them. The votes never leave the hospital: the average does, with
one weight a model. The target remembers the average h, so that it need not be sent again.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor, nn

from fdamed.core.errors import FdamedError
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Count, Individual, Scalar, Statistic, Weights, message
from fdamed.federation.method import Model
from fdamed.methods._shared.local_training import finite
from fdamed.methods.kd3a import consensus
from fdamed.ops.aggregation import mean
from fdamed.ops.slices import head_of, norm_pairs, with_head
from fdamed.training.distillation import Distillation, distil, outputs
from fdamed.training.local import held


@message
class Mark:
    """A checksum of the model that the target should remember."""

    crc32: Count


@message
class Holds:
    yes: Count


@message
class Lesson:
    """The sources' models with their N_k and last weights, and the rules of the block; counts are 0 or 1."""

    teachers: Individual
    n: Statistic
    old: Statistic
    gate: Scalar
    low: Scalar
    mixup: Scalar
    keep: Scalar
    pace: Scalar
    images: Count
    by_probability: Count
    soft: Count
    counted: Count
    shapley: Count
    by_samples: Count
    adapt: Count
    moments: Count
    own_head: Count


@message
class Taught:
    """The average h with the weights alpha (K + 1,), the target's last; `passed` is the share of images with a vote."""

    x: Weights
    alpha: Statistic
    passed: Scalar
    loss: Scalar
    steps: Count
    skipped: Count


@step("kd3a.report_state")
def holds(client: Client, ask: Mark) -> Holds:
    """Whether the target remembers the model of this checksum."""
    return Holds(yes=int("kd3a.h" in client.memory and checksum(client.memory["kd3a.h"]) == ask.crc32))


@step("kd3a.receive_model")
def take(client: Client, ask: Model) -> Holds:
    """Remember this model."""
    client.memory["kd3a.h"] = ask.x.clone()
    return Holds(yes=1)


@step("kd3a.distill")
def learn(client: Client, ask: Lesson) -> Taught:
    """Vote, distil, weigh, average: sections 3.1 to 3.3 of the paper."""
    if len(client.data) == 0:
        raise FdamedError("there is no image to vote on", f"hospital {client.name}", "Give the target some images.")
    images = held(client.data, client.model.theta.device)
    if ask.images:
        images = images[client.rng.child("images").numpy.permutation(len(images))[: ask.images]]
    layout, recipe = client.model.layout, client.recipe.model_copy(update={"lr": client.recipe.lr * ask.pace})
    rule: consensus.Rule = "probability" if ask.by_probability else "confidence"

    q, buffers = outputs(
        client.model,
        ask.teachers,
        images,
        recipe.batch,
        client.rng,
        adapt=bool(ask.adapt),
        noise=client.data.noise,
        precision=client.precision,
    )
    v = consensus.vote(q, ask.gate, rule)
    n_p = v.supporters if ask.counted else v.supporters.clamp(max=1)
    weight = torch.where(v.supporters > 0, n_p, ask.low).float()
    label = v.p if ask.soft else nn.functional.one_hot(v.label, q.shape[2])
    client.model.load(client.memory["kd3a.h"])
    lesson = Distillation(images, label.float(), weight, ask.mixup, bool(ask.soft), client.data.noise)
    d = distil(client.model, lesson, recipe, client.rng, precision=client.precision)
    student = client.model.read()

    passed = float((v.supporters > 0).double().mean())
    if ask.shapley:
        focus = consensus.shapley_focus(q, ask.gate, client.rng.child("orders").numpy, ask.low, rule)
    else:
        focus = consensus.marginal_focus(q, ask.gate, ask.low, rule)
    if ask.by_samples:
        alpha = consensus.weights_by_samples(focus, ask.n.tolist(), len(client.data))
    else:
        alpha = consensus.weights_by_confidence(focus, passed)
    alpha = consensus.smoothed(alpha, ask.old, ask.keep)

    h = mean([*ask.teachers, student], alpha)
    buffers = torch.vstack([buffers, student[layout.trainable :]])
    h[layout.trainable :] = consensus.average_buffers(buffers, alpha, norm_pairs(layout) if ask.moments else ())
    if ask.own_head:
        h = with_head(h, head_of(student, layout), layout)
    client.memory["kd3a.h"] = h.clone()
    return Taught(x=h, alpha=alpha, passed=passed, loss=finite(client, d.loss), steps=d.steps, skipped=d.skipped)


def checksum(x: Tensor) -> int:
    """CRC-32 of a model's bytes."""
    return zlib.crc32(x.contiguous().numpy().data)
