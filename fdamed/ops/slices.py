"""Parts of a flat vector that some methods treat by themselves: the head, and the statistics of BatchNorm."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from fdamed.models.flat import Layout


def head_of(x: Tensor, layout: Layout) -> Tensor:
    """The numbers of the last layer, those of the module `head`, one behind the other."""
    return torch.cat([x[place] for place in _head(layout)])


def head_place(layout: Layout) -> slice:
    """Where the last layer stands in the vector, if it stands in one piece."""
    places = _head(layout)
    if any(a.stop != b.start for a, b in pairwise(places)):
        raise ValueError("the parts of `head` do not stand side by side")
    return slice(places[0].start, places[-1].stop)


def with_head(x: Tensor, head: Tensor, layout: Layout) -> Tensor:
    """A copy of x with these numbers in its last layer."""
    out, places = x.clone(), _head(layout)
    for place, piece in zip(places, torch.split(head, [p.stop - p.start for p in places]), strict=True):
        out[place] = piece
    return out


def norm_pairs(layout: Layout) -> list[tuple[slice, slice]]:
    """Where the running (mean, variance) of each BatchNorm stand among the buffers."""
    at = {s.name: slice(s.start - layout.trainable, s.stop - layout.trainable) for s in layout}
    means = [name for name in at if name.endswith("running_mean")]
    return [(at[name], at[name.removesuffix("mean") + "var"]) for name in means]


def _head(layout: Layout) -> list[slice]:
    places = [slice(s.start, s.stop) for s in layout if s.name.partition(".")[0] == "head"]
    if not places:
        raise ValueError("this network has no part called `head`")
    return places
