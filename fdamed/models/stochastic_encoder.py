"""Stochastic features (FedSR): the encoder, the reference distribution of each class, and prediction."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdamed.core.rng import stream

SMALLEST = 1e-6
"""Added to every sigma: its logarithm stays finite."""


class Encoder(nn.Module):
    """f (B, d) -> mu and sigma (B, d) of z ~ N(mu, sigma^2): one linear layer without ReLU."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(d, 2 * d)

    def forward(self, f: Tensor) -> tuple[Tensor, Tensor]:
        mu, rho = self.encoder(f).chunk(2, dim=1)
        return mu, F.softplus(rho) + SMALLEST


class Reference(nn.Module):
    """r(z|y) = N(r_mu[y], r_sigma[y]^2) with r_mu (C, d) from 0, r_sigma = softplus of 1, and the scale c from 1."""

    def __init__(self, classes: int, d: int, scaled: bool) -> None:
        super().__init__()
        self.mu = nn.Parameter(torch.zeros(classes, d))
        self.rho = nn.Parameter(torch.ones(classes, d))
        self.scale = nn.Parameter(torch.full((1,), math.log(math.e - 1.0))) if scaled else None

    def forward(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        """KL(N(c mu, (c sigma)^2) || r(z|y)) for each row, (B,)."""
        r_mu, r_sigma = F.embedding(y, self.mu), F.softplus(F.embedding(y, self.rho))
        if self.scale is not None:
            c = F.softplus(self.scale)
            mu, sigma = c * mu, c * sigma
        return divergence(mu, sigma, r_mu, r_sigma)


def divergence(mu: Tensor, sigma: Tensor, r_mu: Tensor, r_sigma: Tensor) -> Tensor:
    """KL(N(mu, sigma^2) || N(r_mu, r_sigma^2)) summed over the dimensions: (B, d) -> (B,)."""
    ratio = sigma / r_sigma
    return (0.5 * (ratio.square() + ((mu - r_mu) / r_sigma).square() - 1.0) - ratio.log()).sum(1)


class Sampled(nn.Module):
    """Images -> log of the softmax averaged over `samples` of z; 0 samples: logits at z = mu.

    All images use the same draws of (z - mu) / sigma, so that no prediction depends on another image.
    """

    def __init__(self, network: nn.Module, encoder: Encoder, samples: int) -> None:
        super().__init__()
        self.network = network
        self.encoder = encoder
        d = encoder.encoder.in_features
        self.draws = nn.Buffer(torch.randn(samples, d, generator=stream(0, "representation", "draws").torch))

    def forward(self, x: Tensor) -> Tensor:
        mu, sigma = self.encoder(self.network.features(x).float())  # type: ignore[operator]  # every network has both
        head: nn.Module = self.network.head  # type: ignore[assignment]
        if not len(self.draws):
            logits: Tensor = head(mu)
            return logits
        z = mu + sigma * self.draws[:, None]
        logits = head(z.flatten(0, 1)).view(*z.shape[:2], -1)
        return torch.logsumexp(F.log_softmax(logits, dim=2), 0) - math.log(len(z))
