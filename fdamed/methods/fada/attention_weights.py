"""FADA's dynamic attention: how much tighter the target's features cluster after a source's update."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fdamed.core.rng import Stream
from fdamed.ops.mmd import squared_distances


def k_means(f: Tensor, k: int, rng: Stream, centers: Tensor | None = None, turns: int = 20) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm on (n, d): centers (k, d) and cluster of each row (n,); `centers` is where to begin.

    Fewer rows than clusters: as many clusters as rows. An empty one begins anew at the row farthest from its center.
    """
    k = min(k, len(f))
    if centers is None or centers.shape != (k, f.shape[1]):
        centers = _spread_out(f, k, rng)
    own = torch.full((len(f),), -1, dtype=torch.long)
    for _ in range(turns):
        d = squared_distances(f, centers)
        nearest = d.argmin(1)
        far = d.gather(1, nearest[:, None]).squeeze(1)
        for r in torch.nonzero(torch.bincount(nearest, minlength=k) == 0).flatten().tolist():
            taken = torch.bincount(nearest, minlength=k)[nearest] < 2
            row = int(far.masked_fill(taken, -1.0).argmax())
            nearest[row], far[row] = r, -1.0
        if torch.equal(nearest, own):
            break
        own = nearest
        centers = torch.zeros(k, f.shape[1], dtype=f.dtype).index_add_(0, own, f)
        centers /= torch.bincount(own, minlength=k)[:, None]
    return centers, own


def _spread_out(f: Tensor, k: int, rng: Stream) -> Tensor:
    """k-means++: each first center is drawn with a probability that grows with the distance to those before."""
    generator = rng.numpy
    rows = [int(generator.integers(len(f)))]
    nearest = squared_distances(f, f[rows[-1:]]).squeeze(1).double()
    for _ in range(k - 1):
        total = float(nearest.sum())
        chosen = int(torch.searchsorted(nearest.cumsum(0), generator.random() * total)) if total > 0 else len(rows)
        rows.append(min(chosen, len(f) - 1))
        nearest = torch.minimum(nearest, squared_distances(f, f[rows[-1:]]).squeeze(1).double())
    return f[rows]


def spread(f: Tensor, own: Tensor, squared: bool = True) -> float:
    """I = sum over clusters r of 1/(2 n_r) sum of |f_i - f_j|^2 over its pairs; unsquared norms as the paper prints it.

    The squared form is the inertia, in O(n d) instead of O(n^2 d). A cluster of one contributes 0.
    """
    total, f = 0.0, f.double()
    for r in range(int(own.max()) + 1):
        rows = f[own == r]
        if len(rows) < 2:
            continue
        if squared:
            total += float((rows - rows.mean(0)).square().sum())
        else:
            total += float(torch.cdist(rows, rows).sum()) / (2 * len(rows))
    return total


def looseness(f: Tensor, own: Tensor) -> float:
    """The share of the scatter of (n, d) that lies inside its clusters, 0 to 1: I in units that no scale can change.

    I itself falls with the features' size, so it would give the whole weight to the source that grows them least. Where
    all features are one nothing is told apart: 1, the worst.
    """
    total = float((f.double() - f.double().mean(0)).square().sum())
    return spread(f, own) / total if total > 0.0 else 1.0


def attention(before: float, after: Sequence[float], temperature: float = 0.05, raw: bool = False) -> list[float]:
    """Weights of the sources: softmax of the relative gains (before - I_i)/before over a temperature, or of raw gains.

    A gain that is not finite has weight 0; where no gain is finite, or features already coincide, all weigh alike.
    """
    gains = (
        [before - i for i in after] if raw else [(before - i) / before / temperature if before else 0.0 for i in after]
    )
    finite = [g for g in gains if math.isfinite(g)]
    if not finite:
        return [1.0 / len(gains)] * len(gains)
    top = max(finite)
    e = [math.exp(g - top) if math.isfinite(g) else 0.0 for g in gains]
    return [v / sum(e) for v in e]
