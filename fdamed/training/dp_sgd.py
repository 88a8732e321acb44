"""DP-SGD (Abadi et al. 2016, Algorithm 1) inside a client, with the patient as the unit of privacy.

A step draws every patient with the same probability and one image of each drawn patient, clips the gradient of each
image, adds Gaussian noise to their sum, and divides by the expected number, because the number drawn is not private.
Gradients of single images come from torch.func, and epsilon from Opacus' RDP accountant (decision 0022).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from fdamed.config.privacy import epoch_steps
from fdamed.core.errors import FdamedError
from fdamed.core.rng import Stream
from fdamed.models.flat import FlatModel, sent, view_of, wide
from fdamed.ops.philox import normal

FEWEST, MOST, ROOM = 8, 64, 2**25
"""Images that are differentiated together: as many gradients as fit into 2^25 numbers (128 MiB), in these bounds."""
HOST = torch.device("cpu")
Spent = tuple[float, float, int]
"""Noise multiplier, probability with which a patient is drawn, steps."""


@dataclass(frozen=True, eq=False)
class Mechanism:
    """How a client's training is made private; `patients` (n,) says whose each image is, by numbers from 0."""

    multiplier: float
    clip: float
    patients: NDArray[np.int64]
    delta: float | None = None
    secure: bool = False

    @cached_property
    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Rows patient by patient, where each patient's begin, and how many there are."""
        _, counts = np.unique(self.patients, return_counts=True)
        return np.argsort(self.patients, kind="stable"), np.cumsum(counts) - counts, counts

    @property
    def people(self) -> int:
        return len(self._places[2])

    @property
    def allowance(self) -> float:
        """delta: the probability with which epsilon may not hold, well below one in the number of patients."""
        return self.delta if self.delta is not None else float(max(2, self.people) ** -1.1)

    def expected(self, batch: int) -> int:
        """Images in a step on average."""
        return min(batch, self.people)

    def probability(self, batch: int) -> float:
        """With which a patient is drawn for a step."""
        return self.expected(batch) / self.people

    def batches(self, batch: int, rng: Stream) -> Iterator[Tensor]:
        """Rows of each step of one epoch, as many steps as without privacy; some may be empty."""
        rows, starts, counts = self._places
        for number in range(epoch_steps(len(rows), batch)):
            size = 2 * len(counts)
            u = secret_uniform(size) if self.secure else rng.child("patients", number).numpy.random(size)
            drawn = np.flatnonzero(u[: len(counts)] < self.probability(batch))
            which = (u[len(counts) :][drawn] * counts[drawn]).astype(np.int64)
            yield torch.from_numpy(rows[starts[drawn] + which])

    def gradient(self, model: FlatModel, x: Tensor, y: Tensor, batch: int, rng: Stream) -> Tensor:
        """Set the model's gradient to (sum of clipped gradients + noise) / expected images -> the images' mean loss.

        The loss is without noise and must not leave the client.
        """
        parameters = {s.name: view_of(model.trainable, s).detach() for s in model.layout.parameters}

        def loss(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(model.module, parameters, (image[None],)), label[None])

        of_each = vmap(grad_and_value(loss), in_dims=(None, 0, 0))
        model.grad.zero_()
        together = at_once(len(model.grad))
        total = torch.zeros((), device=x.device)
        for start in range(0, len(x), together):
            part = slice(start, start + together)
            gradients, losses = of_each(parameters, x[part], y[part])
            add_clipped(model, gradients, self.clip)
            total += losses.sum()
        count = len(model.grad)
        device, row = model.grad.device, torch.zeros(1, dtype=torch.int64, device=model.grad.device)
        noise = secret_normal(count, device) if self.secure else normal(rng.child("noise"), row, count)[0]
        model.grad.add_(noise, alpha=self.multiplier * self.clip).div_(self.expected(batch))
        return total / max(1, len(x))


def at_once(parameters: int) -> int:
    """Images that are differentiated together in a model of so many parameters."""
    return max(FEWEST, min(MOST, ROOM // parameters))


def add_clipped(model: FlatModel, gradients: dict[str, Tensor], clip: float) -> None:
    """Add sum_i g_i min(1, clip / |g_i|) to the model's gradient; `gradients` has (B, *shape) for each parameter."""
    squares = [g.flatten(1).square().sum(1) for g in gradients.values()]
    norms = torch.stack(squares).sum(0).sqrt()
    shares = (clip / norms.clamp(min=1e-12)).clamp(max=1.0)
    for s in model.layout.parameters:
        view_of(model.grad, s).add_(torch.einsum("b,b...->...", shares, gradients[s.name]))


def secret_uniform(count: int) -> NDArray[np.float64]:
    """Numbers in (0, 1) from the operating system's cryptographic generator."""
    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(12)
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def secret_normal(count: int, device: torch.device = HOST) -> Tensor:
    """Normal numbers from the same; each the sum of four halves, against attacks on the gaps between floating-point
    numbers (Holohan and Braghin 2021, as Opacus does)."""
    at = device if wide(device) is torch.float64 else HOST  # float32 rounds the largest of them to 1
    total = torch.zeros(count, dtype=torch.float64, device=at)
    for _ in range(4):
        total += torch.special.ndtri(sent(torch.from_numpy(secret_uniform(count)), at))
    return sent(total.div_(2.0).float(), device)


def epsilon(spent: Sequence[Spent], delta: float) -> float:
    """What these steps together cost each patient at this delta; exactly 0 where there are none."""
    return _epsilon(tuple((m, q, int(steps)) for m, q, steps in spent), delta) if spent else 0.0


@lru_cache(maxsize=1024)
def _epsilon(spent: tuple[Spent, ...], delta: float) -> float:
    """Cached, because it takes a tenth of a second and clients of one size ask the same."""
    accountant = accountants()()
    accountant.history = list(spent)
    return float(accountant.get_epsilon(delta))


def accountants() -> type:
    """Opacus' RDP accountant, if the extra is there."""
    try:
        from opacus.accountants import RDPAccountant
    except ImportError:
        raise FdamedError(
            "differential privacy needs Opacus, which is not installed",
            "privacy.differential",
            "Run `pip install 'fdamed[privacy]'`, or leave `differential` out.",
        ) from None
    kind: type = RDPAccountant
    return kind
