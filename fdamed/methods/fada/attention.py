"""What the target measures of a model with images alone: how its features cluster (FADA's dynamic attention), and the
statistics of its BatchNorms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from fdamed.core.rng import Stream, stream
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Check, Count, Individual, Scalar, Statistic, Weights, message
from fdamed.methods._shared.adversarial_training import features
from fdamed.methods.fada.disentanglement import branches, branches_layout
from fdamed.models.adversarial import shape_of
from fdamed.models.flat import FlatModel, Layout
from fdamed.training.input import held, prepared

ITERATIONS = 20
CHUNK, LARGE = 32, 256
"""Images in one pass: few are fastest; for the statistics of the BatchNorms many are more exact."""


@message
class Candidate:
    """One model (1, P), of a single source where `first` is 0; the clusters of the first initialize the others'."""

    models: Individual
    probe: Count
    first: Count


@message
class Spread:
    i: Scalar


@message
class Uncalibrated:
    """A model with its branches, whose running statistics belong to other weights."""

    x: Weights
    d: Statistic
    probe: Count


def _buffers_shape(layout: Layout) -> tuple[int, ...]:
    return (layout.size - layout.trainable,)


@message
class RunningStatistics:
    """Those of the model and of the branches at the target; none where it has fewer than two images."""

    x: Annotated[Statistic, Check(shape=lambda _, layout: _buffers_shape(layout), optional=True)]
    d: Annotated[Statistic, Check(shape=lambda _, layout: _buffers_shape(branches_layout(layout)), optional=True)]


@step("fada.feature_spread")
def feature_spread(client: Client, ask: Candidate) -> Spread:
    """The statistic I of the paper's gap attention on a fixed part of the images; 0 where there are none."""
    client.model.load(ask.models[0])
    client.model.module.eval()
    with torch.inference_mode():
        parts = [features(client, x).float().cpu() for x in _probe(client, ask.probe, CHUNK)]
        if not parts:
            return Spread(i=0.0)
        f = torch.cat(parts)
        # "centres" is the name of a random stream: another spelling would draw other centers.
        rng = stream(client.seed, client.name, "probe", "centres")
        centers, own = k_means(f, shape_of(client.model.layout).classes, rng, client.memory.get("fada.centers"))
        i = within_share(f, own)
    if ask.first:
        client.memory["fada.centers"] = centers.clone()
    return Spread(i=i)


@step("fada.recalibrate")
def recalibrate(client: Client, ask: Uncalibrated) -> RunningStatistics:
    """Measure the running statistics under this very model, on a fixed part of the images."""
    client.model.load(ask.x)
    if len(client.data) < 2:
        return RunningStatistics(x=torch.empty(0), d=torch.empty(0))
    parts = branches(client, ask.d)
    modules = (client.model.module, parts.module)
    norms = [n for m in modules for n in m.modules() if isinstance(n, nn.modules.batchnorm._BatchNorm)]
    momentum = [n.momentum for n in norms]
    for module in modules:
        module.train()
    for n in norms:
        n.reset_running_stats()
    with torch.no_grad():
        for number, x in enumerate(_probe(client, max(2, ask.probe), LARGE)):  # BatchNorm cannot train on one image
            for n in norms:
                n.momentum = 1.0 / (number + 1)  # the plain mean over all batches, without a question to the device
            parts.module(features(client, x).float())
    for n, before in zip(norms, momentum, strict=True):
        n.momentum = before
    return RunningStatistics(x=_buffers(client.model), d=_buffers(parts))


def _buffers(model: FlatModel) -> Tensor:
    return model.read()[model.layout.trainable :]


def _probe(client: Client, count: int, size: int) -> Iterator[Tensor]:
    """At most `count` of the client's images, the same ones each time, in batches of about this size."""
    device = client.model.theta.device
    fixed = stream(client.seed, client.name, "probe")
    rows = torch.from_numpy(fixed.numpy.permutation(len(client.data))[:count].copy()).sort().values
    for number, part in enumerate(torch.tensor_split(rows, -(-len(rows) // size) or 1)):
        if len(part):
            yield prepared(held(client.data, device), part, device, fixed, number, noise=client.data.noise)


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """|x_i - y_j|^2 as |x|^2 + |y|^2 - 2 x.y, (n, d), (m, d) -> (n, m), never below 0."""
    xx, yy = (x * x).sum(1), (y * y).sum(1)
    return (xx[:, None] + yy[None, :] - 2.0 * (x @ y.t())).clamp_min(0.0)


def k_means(f: Tensor, k: int, rng: Stream, centers: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm on (n, d): centers (k, d), from `centers` on, and the cluster of each row (n,).

    With fewer rows than clusters every row is one. An empty cluster restarts at the row farthest from its center.
    """
    k = min(k, len(f))
    if centers is None or centers.shape != (k, f.shape[1]):
        centers = _first_centers(f, k, rng)
    own = torch.full((len(f),), -1, dtype=torch.long)
    for _ in range(ITERATIONS):
        d = squared_distances(f, centers)
        nearest = d.argmin(1)
        far = d.gather(1, nearest[:, None]).squeeze(1)
        for r in torch.nonzero(torch.bincount(nearest, minlength=k) == 0).flatten().tolist():
            alone = torch.bincount(nearest, minlength=k)[nearest] < 2
            row = int(far.masked_fill(alone, -1.0).argmax())
            nearest[row], far[row] = r, -1.0
        if torch.equal(nearest, own):
            break
        own = nearest
        centers = torch.zeros(k, f.shape[1], dtype=f.dtype).index_add_(0, own, f)
        centers /= torch.bincount(own, minlength=k)[:, None]
    return centers, own


def _first_centers(f: Tensor, k: int, rng: Stream) -> Tensor:
    """k-means++: a center is drawn with a probability proportional to the squared distance to those before."""
    generator = rng.numpy
    rows = [int(generator.integers(len(f)))]
    nearest = squared_distances(f, f[rows[-1:]]).squeeze(1).double()
    for _ in range(k - 1):
        total = float(nearest.sum())
        chosen = int(torch.searchsorted(nearest.cumsum(0), generator.random() * total)) if total > 0 else len(rows)
        rows.append(min(chosen, len(f) - 1))
        nearest = torch.minimum(nearest, squared_distances(f, f[rows[-1:]]).squeeze(1).double())
    return f[rows]


def inertia(f: Tensor, own: Tensor) -> float:
    """I = sum over clusters r of 1/(2 n_r) sum of |f_i - f_j|^2 over its pairs, in O(n d)."""
    clusters = [f.double()[own == r] for r in range(int(own.max()) + 1)]
    return sum((float((rows - rows.mean(0)).square().sum()) for rows in clusters if len(rows) > 1), 0.0)


def within_share(f: Tensor, own: Tensor) -> float:
    """The share of the scatter of (n, d) inside the clusters, 0 to 1; where all features are equal 1, the worst.

    I itself falls with the features' size, so it would give all the weight to the source that grows them least.
    """
    total = float((f.double() - f.double().mean(0)).square().sum())
    return inertia(f, own) / total if total > 0.0 else 1.0


def attention(before: float, after: Sequence[float], temperature: float = 0.05) -> list[float]:
    """Weights of the sources: softmax of the relative gains (before - I_i)/before over a temperature.

    A gain that is not finite has weight 0; where no gain is finite, or features already coincide, weights are equal.
    """
    gains = [(before - i) / before / temperature if before else 0.0 for i in after]
    finite = [g for g in gains if math.isfinite(g)]
    if not finite:
        return [1.0 / len(gains)] * len(gains)
    e = [math.exp(g - max(finite)) if math.isfinite(g) else 0.0 for g in gains]
    return [v / sum(e) for v in e]
