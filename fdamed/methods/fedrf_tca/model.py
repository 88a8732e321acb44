"""A hospital's own model in FedRF-TCA and its losses: features, random features, aligner, a classifier or several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdamed.methods._shared.adversarial_training import Batch, Local
from fdamed.models.adversarial import count, shape_of
from fdamed.models.flat import FlatModel, layout_of
from fdamed.ops.random_features import aligned_distance, fourier_features, unit

KEPT = ("fedrf.g", "fedrf.omega", "fedrf.w", "fedrf.c")
"""Server, frequencies, aligner, classifier: a hospital's own model, in its memory."""


class Parts(nn.Module):
    """W as a layer without bias, and C: m -> width -> width -> classes."""

    def __init__(self, frequencies: int, components: int, width: int, classes: int) -> None:
        super().__init__()
        self.aligner = nn.Linear(2 * frequencies, components, bias=False)
        self.classifier = nn.Sequential(
            nn.Linear(components, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
        )


class Predictor(nn.Module):
    """Images -> logits with one W; several classifiers vote."""

    def __init__(self, network: nn.Module, omega: Tensor, parts: Sequence[Parts]) -> None:
        super().__init__()
        self.network = network
        self.omega = nn.Buffer(omega)
        self.aligner = parts[0].aligner
        self.classifiers = nn.ModuleList(p.classifier for p in parts)

    def forward(self, x: Tensor) -> Tensor:
        f = self.network.features(x).float()  # type: ignore[operator]  # every network here has features
        seen = unit(self.aligner(fourier_features(unit(f), self.omega)))
        logits = torch.stack([c(seen) for c in self.classifiers])
        return logits[0] if len(logits) == 1 else hard_vote(logits)


def predictor(network: nn.Module, kept: Mapping[str, Tensor], components: int, width: int) -> Predictor:
    """The model of a hospital that keeps these; the network is filled with its weights."""
    classes = shape_of(layout_of(network)).classes
    FlatModel(network).load(kept["fedrf.g"])
    sizes = (len(kept["fedrf.omega"]), components, width, classes)
    parts = []
    for c in kept["fedrf.c"].view(-1, count(Parts(*sizes).classifier)):
        parts.append(Parts(*sizes))
        FlatModel(parts[-1]).load(torch.cat([kept["fedrf.w"], c]))
    return Predictor(network, kept["fedrf.omega"], parts)


@dataclass
class Alignment:
    """The losses of one question, on features (B, d)."""

    local: Local
    parts: FlatModel
    omega: Tensor
    others: Tensor
    weight: float
    normalize: bool
    apart: float = 0.0

    def task(self, f: Tensor, batch: Batch) -> Tensor:
        """L_C alone."""
        return self._task(f, self._seen(f), batch)

    def aligned(self, f: Tensor, batch: Batch) -> Tensor:
        """Eq. 12 at a source; Eq. 11, the mean over the sources that told, at the target."""
        seen = self._seen(f)
        source = batch.y is not None
        own = seen.mean(0) if source else -seen.mean(0)
        w: Tensor = self.parts.module.aligner.weight  # type: ignore[assignment, union-attr]
        distance = aligned_distance(w, own + self.others, self.normalize)
        self.apart = float(distance.detach())
        return self._task(f, seen, batch) + (self.weight if source else 1.0) * distance

    def _seen(self, f: Tensor) -> Tensor:
        return fourier_features(unit(f), self.omega)

    def _task(self, f: Tensor, seen: Tensor, batch: Batch) -> Tensor:
        if batch.y is None:
            return f.sum() * 0.0
        module = self.parts.module
        logits = module.classifier(unit(module.aligner(seen)))  # type: ignore[operator]
        return F.cross_entropy(logits, batch.y) + self.local.auxiliary_losses(f, batch)


@contextmanager
def still(model: FlatModel, frozen: int) -> Iterator[None]:
    """The layers whose parameters all lie among the first `frozen` get no gradient and stay in evaluation mode."""
    ends = {s.name: s.stop for s in model.layout.parameters}
    layers: list[nn.Module] = []
    for name, layer in model.module.named_modules():
        own = [f"{name}.{k}".removeprefix(".") for k, _ in layer.named_parameters(recurse=False)]
        if own and all(ends[k] <= frozen for k in own):
            layers.append(layer)
    for layer in layers:
        layer.eval().requires_grad_(False)
        layer.train = lambda mode=True, layer=layer: layer  # type: ignore[method-assign, misc]
    try:
        yield
    finally:
        for layer in layers:
            del layer.train
            layer.requires_grad_(True)


def hard_vote(logits: Tensor) -> Tensor:
    """(K, B, C) -> log scores (B, C): most votes first, then the larger summed log-probability, then the first class.

    A score is the number of votes and half the probability under the mean log-probability: less than any vote.
    """
    votes = F.one_hot(logits.argmax(2), logits.shape[2]).sum(0)
    opinion = F.softmax(F.log_softmax(logits, dim=2).mean(0), dim=1)
    return torch.log((votes + 0.5 * opinion) / (len(logits) + 0.5))
