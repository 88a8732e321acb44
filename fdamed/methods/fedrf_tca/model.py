"""A client's own model in FedRF-TCA and its losses: features, random features, aligner, one classifier or several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdamed.methods._shared.adversarial_training import Batch, Local
from fdamed.models.adversarial import count, shape_of
from fdamed.models.flat import FlatModel, layout_of, wide
from fdamed.ops.random_features import aligned_distance, fourier_features, unit

G, OMEGA, W, C = KEPT = ("fedrf.g", "fedrf.omega", "fedrf.w", "fedrf.c")
"""Extractor, frequencies, aligner, classifier: a client's own model, in its memory."""


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
        aligned = unit(self.aligner(fourier_features(unit(f), self.omega)))
        logits = torch.stack([c(aligned) for c in self.classifiers])
        return logits[0] if len(logits) == 1 else hard_vote(logits)


def predictor(network: nn.Module, kept: Mapping[str, Tensor], components: int, width: int) -> Predictor:
    """The model of a client with this memory; the network gets its weights."""
    sizes = (len(kept[OMEGA]), components, width, shape_of(layout_of(network)).classes)
    FlatModel(network).load(kept[G])
    parts = []
    for c in kept[C].view(-1, count(Parts(*sizes).classifier)):
        parts.append(Parts(*sizes))
        FlatModel(parts[-1]).load(torch.cat([kept[W], c]))
    return Predictor(network, kept[OMEGA], parts)


def hard_vote(logits: Tensor) -> Tensor:
    """(K, B, C) -> log scores (B, C): most votes first, then the larger summed log-probability, then the first class.

    A score is the number of votes and half the probability under the mean log-probability: less than any vote.
    """
    votes = F.one_hot(logits.argmax(2), logits.shape[2]).sum(0)
    opinion = F.softmax(F.log_softmax(logits, dim=2).mean(0), dim=1)
    return torch.log((votes + 0.5 * opinion) / (len(logits) + 0.5))


@dataclass
class Losses:
    """L_C at a source, and if `aligned` the distance to the other side's means, on features (B, d).

    Eq. 12 at a source; Eq. 11, the mean over the sources' means, at the target.
    """

    local: Local
    parts: FlatModel
    omega: Tensor
    others: Tensor
    weight: float
    normalize: bool
    aligned: bool = True
    distance: Tensor | float = 0.0
    """The sum of the distances of all batches."""

    def __call__(self, f: Tensor, batch: Batch) -> Tensor:
        features = fourier_features(unit(f), self.omega)
        if not self.aligned:
            return self._task(f, features, batch)
        mean, weight = (features.mean(0), self.weight) if batch.y is not None else (-features.mean(0), 1.0)
        w: Tensor = self.parts.module.aligner.weight  # type: ignore[assignment, union-attr]
        distance = aligned_distance(w, mean + self.others, self.normalize)
        self.distance = self.distance + distance.detach().to(wide(f.device))
        return self._task(f, features, batch) + weight * distance

    def _task(self, f: Tensor, features: Tensor, batch: Batch) -> Tensor:
        if batch.y is None:
            return f.sum() * 0.0
        module = self.parts.module
        logits = module.classifier(unit(module.aligner(features)))  # type: ignore[operator]
        return F.cross_entropy(logits, batch.y) + self.local.auxiliary_losses(f, batch)


@contextmanager
def frozen_layers(model: FlatModel, frozen: int) -> Iterator[None]:
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
            layer.train(model.module.training).requires_grad_(True)
