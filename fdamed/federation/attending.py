"""FADA's look at the target's clusters: how far its features spread under a model."""

from __future__ import annotations

import torch

from fdamed.algebra.attention import k_means, spread
from fdamed.federation.adversaries import features
from fdamed.federation.site import Site, at_site
from fdamed.federation.wire import Count, Individual, Scalar, message
from fdamed.models.adversary import shape_of
from fdamed.seeds import stream
from fdamed.train import as_input, held, noisy, taken

CHUNK = 256


@message
class Candidate:
    """One model (1, P), of a single source where `first` is 0; the clusters of the first are where the others begin."""

    models: Individual
    probe: Count
    squared: Count
    first: Count


@message
class Spread:
    i: Scalar


@at_site
def spread_of(site: Site, ask: Candidate) -> Spread:
    """The statistic I of the paper's gap attention on a fixed part of the images; 0 where there are none."""
    site.model.load(ask.models[0])
    site.model.module.eval()
    device = site.model.theta.device
    fixed = stream(site.seed, site.name, "probe")
    rows = torch.from_numpy(fixed.numpy.permutation(len(site.data))[: ask.probe].copy()).sort().values
    if len(rows) == 0:
        return Spread(i=0.0)
    parts = []
    with torch.inference_mode():
        for number, start in enumerate(range(0, len(rows), CHUNK)):
            x = as_input(taken(held(site.data, device), rows[start : start + CHUNK], device))
            if site.data.noise:
                x = noisy(x, site.data.noise, fixed.child("noise", number))
            parts.append(features(site, x).float().cpu())
        f = torch.cat(parts)
        centres = site.memory.get("fada.centres")
        centres, own = k_means(f, shape_of(site.model.layout).classes, fixed.child("centres"), centres)
        i = spread(f, own, squared=bool(ask.squared))
    if ask.first:
        site.memory["fada.centres"] = centres.clone()
    return Spread(i=i)
