"""Aggregation rules on flat vectors: pure functions, per layer or on the whole model.

g_t (P,) is the target's update, g_s (N, P) the sources', `layout` names the segments (P numbers). beta is the weight of
the source side everywhere: beta = 0 is target only. A layer whose norm is zero contributes 0. Buffers and shared
auxiliary heads are never projected: a rule returns the target's own change of them (none, of heads that it never
trains), or (fedda, mean) averages them like the other parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fdamed.models.flat import Layout, sent, wide

Products = tuple[Tensor, Tensor, Tensor]
"""<g_T, g_i> (N, L), <g_i, g_i> (N, L) and <g_T, g_T> (L,)."""
BLOCK = 1 << 16
"""Numbers per block: the vectors of one block stay in the cache between two reads."""
BLOCK_OF_A_GPU = 1 << 22
"""There a block is a few launches of kernels; a layer of ResNet-18 is one block."""


def mean(g_s: Tensor | Sequence[Tensor], weights: Sequence[float] | Tensor | None = None) -> Tensor:
    """Weighted mean over the sources, (P,), summed in float64."""
    n, size = len(g_s), g_s[0].numel()
    w = normalized(weights, n).tolist()
    out = torch.empty(size)
    for start in range(0, size, BLOCK):
        total = g_s[0][start : start + BLOCK].double().mul_(w[0])
        for i in range(1, n):
            total.add_(g_s[i][start : start + BLOCK], alpha=w[i])
        out[start : start + BLOCK] = total
    return out


def fedda(
    g_t: Tensor, g_s: Tensor, layout: Layout, beta: float, weights: Sequence[float] | Tensor | None = None
) -> Tensor:
    """FedDA (FedGP paper, Def. 3.2): (1 - beta) g_T + beta * sum_i w_i g_i, also of the buffers."""
    if not len(g_s):
        return scaled(g_t, layout, 1.0 - beta)
    return torch.addmv(g_t, g_s.t(), normalized(weights, len(g_s)).to(g_s), beta=1.0 - beta, alpha=beta)


def fedgp(
    g_t: Tensor,
    g_s: Tensor,
    layout: Layout,
    beta: float,
    weights: Sequence[float] | Tensor | None = None,
    per_layer: bool = True,
    keep_negative: bool = False,
    products: Products | None = None,
) -> Tensor:
    """FedGP (Def. 3.1): (1 - beta) g_T + beta * sum_i w_i Proj+(g_T | g_i), the true projection on each source.

    `products`: the inner products of g_t and g_s, where they are known already.
    """
    dot, ss, _ = products or inner_products(g_t, g_s, layout, per_layer)
    kept = dot if keep_negative else dot.clamp(min=0.0)
    share = torch.where(ss > 0, kept / ss.where(ss > 0, torch.ones_like(ss)), torch.zeros_like(ss))
    w = normalized(weights, len(g_s)).unsqueeze(1)
    return combine(g_t, g_s, layout, 1.0 - beta, beta * w * share, per_layer)


def gp(
    g_t: Tensor,
    g_s: Tensor,
    layout: Layout,
    beta: float,
    weights: Sequence[float] | Tensor | None = None,
    align: Sequence[float] | Tensor | None = None,
    per_layer: bool = True,
    keep_negative: bool = False,
    products: Products | None = None,
) -> Tensor:
    """GP (healthcare paper, Eq. 5-9): (1 - beta) G_T + beta * sum_i max(cos, 0) * w_i * align_i * G_Si.

    `products`: the inner products of g_t and g_s, where they are known already.
    """
    cos = cosines(*(products or inner_products(g_t, g_s, layout, per_layer)))
    kept, w = cos if keep_negative else cos.clamp(min=0.0), normalized(weights, len(g_s))
    scale = torch.ones_like(w) if align is None else torch.as_tensor(align, dtype=torch.float64)
    return combine(g_t, g_s, layout, 1.0 - beta, beta * kept * (w * scale).unsqueeze(1), per_layer)


def stacked(vectors: Iterator[Tensor], count: int, size: int) -> Tensor:
    """(N, P) of `count` vectors (P,), each released once it is copied: one model more in memory, not N."""
    out = torch.empty(count, size)
    for i, vector in enumerate(vectors):
        out[i] = vector
    return out


def with_mean_buffers(g: Tensor, g_t: Tensor, g_s: Tensor, layout: Layout, n: Sequence[int]) -> Tensor:
    """g with the sources' and the target's change of the buffers, averaged by n (N + 1,), the target's last."""
    buffers, w = slice(layout.trainable, None), torch.tensor(n, dtype=torch.float32)
    g[buffers] = torch.mv(torch.vstack([g_s[:, buffers], g_t[buffers]]).t(), w / w.sum())
    return g


def scaled(g: Tensor, layout: Layout, own: float) -> Tensor:
    """own * g for the parameters, g for the buffers: (P,)."""
    out = g.clone()
    out[: layout.trainable].mul_(own)
    return out


def cosines(dot: Tensor, ss: Tensor, tt: Tensor) -> Tensor:
    """cos(g_i, g_T) by source and layer, (N, L); 0 where either is zero (Eq. 4)."""
    norms = (ss * tt).sqrt()
    return torch.where(norms > 0, dot / norms.where(norms > 0, torch.ones_like(norms)), torch.zeros_like(dot))


def normalized(weights: Sequence[float] | Tensor | None, n: int) -> Tensor:
    """Weights that add up to 1, (N,) float64; None: all equal."""
    if weights is None or n == 0:
        return torch.full((n,), 1.0 / max(n, 1), dtype=torch.float64)
    w = torch.as_tensor(weights, dtype=torch.float64)
    if w.shape != (n,) or not bool((w >= 0).all()) or not float(w.sum()) > 0:
        raise ValueError(f"{n} non-negative weights with a positive sum are needed")
    return w / w.sum()


def inner_products(g_t: Tensor, g_s: Tensor, layout: Layout, per_layer: bool = True) -> Products:
    """<g_T, g_i> (N, L), <g_i, g_i> (N, L), <g_T, g_T> (L,) by layer, in float64; memory is read once."""
    work = blocks(g_t, g_s, layout, per_layer)
    layer = sent(torch.tensor([layer for layer, *_ in work]), g_t.device)
    pieces = [(g_t[start:stop], g_s[:, start:stop]) for _, start, stop in work]

    def by_layer(sums: list[Tensor]) -> Tensor:
        total = torch.zeros((1 + work[-1][0], *sums[0].shape), dtype=wide(g_t.device), device=g_t.device)
        return total.index_add_(0, layer, torch.stack(sums).to(total.dtype))

    dot = by_layer([torch.mv(s, t) for t, s in pieces])
    ss = by_layer([torch.linalg.vector_norm(s, dim=1).to(wide(g_t.device)).square() for _, s in pieces])
    return dot.t(), ss.t(), by_layer([torch.dot(t, t) for t, _ in pieces])


def combine(g_t: Tensor, g_s: Tensor, layout: Layout, own: float, shares: Tensor, per_layer: bool = True) -> Tensor:
    """own * g_T + sum_i shares[i, layer] * g_i for the parameters, g_T for auxiliary heads and buffers: (P,)."""
    out, factors = torch.empty_like(g_t), shares.t().to(g_t.dtype).contiguous()
    for layer, start, stop in blocks(g_t, g_s, layout, per_layer):
        torch.addmv(g_t[start:stop], g_s[:, start:stop].t(), factors[layer], beta=own, out=out[start:stop])
    out[layout.main :] = g_t[layout.main :]
    return out


def blocks(g_t: Tensor, g_s: Tensor, layout: Layout, per_layer: bool) -> list[tuple[int, int, int]]:
    """(layer, start, stop) of blocks of the parameters, each inside one layer; without `per_layer` the model is one.

    Shared auxiliary heads have none.
    """
    if g_t.shape != (layout.size,) or g_s.shape[1:] != g_t.shape:
        shapes = f"{tuple(g_t.shape)} and {tuple(g_s.shape)}"
        raise ValueError(f"vectors of {shapes} do not fit a layout of {layout.size} numbers")
    spans = [s for s in layout.stretches if s[1] <= layout.main] if per_layer else [(0, layout.main)]
    size = BLOCK if g_t.device.type == "cpu" else BLOCK_OF_A_GPU
    return [
        (layer, start, min(start + size, stop))
        for layer, (first, stop) in enumerate(spans)
        for start in range(first, stop, size)
    ]
