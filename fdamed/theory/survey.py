"""Measure the gradients of all clients at one model, through the federation: what explains a recommendation.

The model is that of a real warm-up: at random weights the clients share little but the class frequencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fdamed.core.errors import FdamedError
from fdamed.federation.server import Server
from fdamed.models.flat import Layout
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
)

BATCH = 8
"""Images of one gradient, at the sources and the target alike: BatchNorm makes gradients depend on it."""
IMAGES = 128
"""Images of a client that its gradient is taken over, at most."""
REPLICATES = 200
LEAST = 0.1
"""The estimate of a source's squared norm is at least this share of the observed one, however noisy its gradient."""
FEWEST = 4
"""Labeled images from which a variance can be estimated."""


@dataclass(frozen=True)
class Findings:
    """Result of a survey: the estimate and its bootstrap resamples; `images` counts forward and backward passes."""

    sources: tuple[str, ...]
    samples: tuple[int, ...]
    labeled: int
    moments: tuple[Moments, ...]
    images: int


def survey(server: Server, theta: Tensor, labeled: int, replicates: int = REPLICATES) -> Findings:
    """Ask the sources for their gradients at `theta`, and the target to compare its own with them."""
    if labeled < FEWEST:
        what = f"the target has {labeled} labeled images; at least {FEWEST} are needed to estimate a variance"
        raise FdamedError(what, "advise", "Label more images, or raise split.labeled.")
    batch = max(2, min(BATCH, labeled // 4))
    part = Part(x=theta, images=IMAGES, batch=batch)
    s: dict[str, Gradient] = server.ask_all(server.sources, gradient, part)
    if not s:
        raise FdamedError("no source sent a usable gradient", f"target {server.target}", "See the log for the reasons.")
    moments, answer = _compare(server, part, s, replicates)
    images = sum(r.used for r in s.values()) + answer.used
    return Findings(tuple(s), tuple(r.n for r in s.values()), answer.n, moments, images)


def units(gradients: Sequence[Tensor], layout: Layout) -> Tensor:
    """The unit in which each tensor is measured, (L,): the sources' root mean square there, times sqrt(P).

    Adam takes steps of about one size in every tensor, so that plain gradients, which differ by orders between
    tensors, would let one tensor dominate. The theorems hold for any fixed inner product.
    """
    size = torch.tensor([s.stop - s.start for s in layout.parameters], dtype=torch.float64)
    square = torch.stack([by_tensor(g, layout) for g in gradients]).mean(0) / size
    return (square.clamp(min=float(square.max()) * 1e-12 + 1e-300) * size.sum()).sqrt()  # a source's norm is near 1


def _compare(
    server: Server, part: Part, s: dict[str, Gradient], replicates: int
) -> tuple[tuple[Moments, ...], Geometry]:
    layout, replies = server.layout, list(s.values())
    unit = units([r.g for r in replies], layout)
    inverse = 1.0 / spread(unit, layout)
    u = torch.stack([r.g for r in replies])
    u[:, : layout.trainable] *= inverse
    norms = torch.linalg.vector_norm(u, dim=1).double()
    u /= norms.clamp(min=1e-30).float()[:, None]
    noise2 = torch.stack([(r.noise2 / unit.square()).sum() for r in replies])
    question = Question(x=part.x, u=u, unit=unit, images=part.images, batch=part.batch, replicates=replicates)
    answer: Geometry = server.ask(server.target, measure_geometry, question)
    true = torch.maximum(norms.square() - noise2, LEAST * norms.square()).sqrt()
    # Noise makes a direction too long and all its cosines too small: correct inner products by this factor.
    gain = torch.where(true > 0, norms / true.where(true > 0, torch.ones_like(true)), torch.zeros_like(true))
    both = torch.outer(gain, gain)
    gram = (u.double() @ u.double().t() * both).clamp(-1.0, 1.0)
    gram.fill_diagonal_(1.0)

    def moments(sigma2: float, mean2: float, t: Tensor, cov: Tensor) -> Moments:
        return estimated(sigma2, mean2, (t * gain).numpy(), (cov * both).numpy(), true.numpy(), gram.numpy())

    # A resample is noisier than the data by one more sigma^2: shift its |v^|^2 so that the mean is the estimate.
    mean2 = answer.mean2.clone()
    mean2[1:] = (mean2[1:] + mean2[0] - mean2[1:].mean()).clamp(min=0.0)
    return tuple(map(moments, answer.sigma2.tolist(), mean2.tolist(), answer.t, answer.cov)), answer
