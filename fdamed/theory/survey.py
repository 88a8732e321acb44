"""Measure the gradients of all hospitals at a few points of a short FedAvg path, through the federation.

The points are the pi of Definition 4.1. Each source trains on a few images before each of them: at random weights the
hospitals share little but the class frequencies, and the authors' own runs start after two FedAvg rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fdamed.core.errors import FdamedError
from fdamed.federation.server import Server
from fdamed.models.flat import Layout
from fdamed.ops.aggregation import mean
from fdamed.theory.delta_error import Moments, estimated
from fdamed.theory.survey_client import (
    Geometry,
    Gradient,
    Part,
    Question,
    by_tensor,
    gradient,
    measure_geometry,
    spread,
    train_a_little,
)

SHARE = 0.05
"""A survey may cost this share of one training run, counted in images through the network."""
BATCH = 8
"""Images of one gradient, at the sources and the target alike: BatchNorm makes gradients depend on it."""
LEAST = 0.1
"""The estimate of a source's squared norm is at least this share of the observed one, however noisy its gradient."""


@dataclass(frozen=True)
class Plan:
    """The number of images that each hospital uses."""

    points: int
    warm: int
    """Images a source trains on before each point; 0: none."""
    images: int
    """Images a source's gradient is taken over."""
    target: int
    batch: int
    replicates: int = 200


Point = tuple[Moments, ...]
"""Result at one theta: the estimate, then its bootstrap resamples."""


@dataclass(frozen=True)
class Findings:
    """Result of a survey; `images` counts forward and backward passes."""

    sources: tuple[str, ...]
    samples: tuple[int, ...]
    labeled: int
    points: tuple[Point, ...]
    images: int


def plan(run_images: int, samples: Sequence[int], labeled: int) -> Plan:
    """The largest plan that costs at most SHARE of a run of `run_images`, within useful limits.

    `samples`: images of each source. Three points if each source can use 64 images at each, otherwise fewer.
    """
    if labeled < 4:
        what = f"the target has {labeled} labeled images; at least 4 are needed to estimate a variance"
        raise FdamedError(what, "advise", "Label more images, or raise split.labeled.")
    target = min(labeled, 256, max(16, int(SHARE * run_images / 2)))  # half of it is for the sources
    batch = max(2, min(BATCH, target // 4))
    left = {points: (SHARE * run_images / points - target) / len(samples) for points in (3, 2, 1)}
    points = next((p for p, images in left.items() if images >= 2.5 * 64), 1)
    images = min(max(int(0.6 * left[points]), 2 * batch), 512, max(samples))
    warm = min(int(0.4 * left[points]), 1024, max(samples))
    if left[points] < 2.5 * 64:  # too few images for a warm-up: the gradients need them more
        warm, images = 0, min(max(int(left[points]), 2 * batch), 512, max(samples))
    return Plan(points, warm, images, target, batch)


def survey(server: Server, theta: Tensor, plan: Plan) -> Findings:
    """Run a survey. If a source drops out, earlier points are discarded: they averaged over other sources."""
    points: list[Point] = []
    images, labeled, sources, samples = 0, 0, server.sources, tuple[int, ...]()
    for number in range(1, plan.points + 1):
        server.begin(number, plan.points)
        if plan.warm:
            h = server.ask_all(sources, train_a_little, Part(x=theta, images=plan.warm, batch=plan.batch))
            images += sum(r.n for r in h.values())
            theta = mean([r.x for r in h.values()], [r.n for r in h.values()]) if h else theta
        s: dict[str, Gradient] = server.ask_all(sources, gradient, Part(x=theta, images=plan.images, batch=plan.batch))
        if not s:
            raise FdamedError(
                "no source sent a usable gradient", f"target {server.target}", "See the log for the reasons."
            )
        if tuple(s) != sources:
            points.clear()
        point, answer = _point(server, theta, s, plan)
        points.append(point)
        images += sum(r.used for r in s.values()) + answer.used
        labeled, sources, samples = answer.n, tuple(s), tuple(r.n for r in s.values())
    return Findings(sources, samples, labeled, tuple(points), images)


def units(gradients: Sequence[Tensor], layout: Layout) -> Tensor:
    """The unit in which each tensor is measured, (L,): the sources' root mean square there, times sqrt(P).

    Adam takes steps of about one size in every tensor, so that plain gradients, which differ by orders between
    tensors, would let one tensor dominate. The theorems hold for any fixed inner product.
    """
    size = torch.tensor([s.stop - s.start for s in layout.parameters], dtype=torch.float64)
    square = torch.stack([by_tensor(g, layout) for g in gradients]).mean(0) / size
    return (square.clamp(min=float(square.max()) * 1e-12 + 1e-300) * size.sum()).sqrt()  # a source's norm is near 1


def _point(server: Server, theta: Tensor, s: dict[str, Gradient], plan: Plan) -> tuple[Point, Geometry]:
    layout, replies = server.layout, list(s.values())
    unit = units([r.g for r in replies], layout)
    inverse = 1.0 / spread(unit, layout)
    u = torch.stack([r.g for r in replies])
    u[:, : layout.trainable] *= inverse
    length = torch.linalg.vector_norm(u, dim=1).double()
    u /= length.clamp(min=1e-30).float()[:, None]
    noise2 = torch.stack([(r.noise2 / unit.square()).sum() for r in replies])
    question = Question(x=theta, u=u, unit=unit, images=plan.target, batch=plan.batch, replicates=plan.replicates)
    answer: Geometry = server.ask(server.target, measure_geometry, question)
    true = torch.maximum(length.square() - noise2, LEAST * length.square()).sqrt()
    # Noise makes a direction too long and all its cosines too small: correct inner products by this factor.
    gain = torch.where(true > 0, length / true.where(true > 0, torch.ones_like(true)), torch.zeros_like(true))
    both = torch.outer(gain, gain)
    gram = (u.double() @ u.double().t() * both).clamp(-1.0, 1.0)
    gram.fill_diagonal_(1.0)

    def moments(sigma2: float, mean2: float, t: Tensor, cov: Tensor) -> Moments:
        return estimated(sigma2, mean2, (t * gain).numpy(), (cov * both).numpy(), true.numpy(), gram.numpy())

    # A resample is noisier than the data by one more sigma^2: shift its |v^|^2 so that the mean is the estimate.
    mean2 = answer.mean2.clone()
    mean2[1:] = (mean2[1:] + mean2[0] - mean2[1:].mean()).clamp(min=0.0)
    return tuple(map(moments, answer.sigma2.tolist(), mean2.tolist(), answer.t, answer.cov)), answer
