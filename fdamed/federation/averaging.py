"""One FedAvg round over the sources: the beginning of most methods."""

from __future__ import annotations

from fdamed.algebra.vector import mean
from fdamed.federation.method import Model
from fdamed.federation.network import Network
from fdamed.federation.steps import train_locally


def source_average(net: Network, model: Model) -> Model:
    """sum_k n_k/n h_k over the sources that answered; the model itself if none did."""
    h = net.ask_all(net.sources, train_locally, model)
    if not h:
        return model
    net.notes["train/loss"] = sum(r.n * r.loss for r in h.values()) / sum(r.n for r in h.values())
    return Model(x=mean([r.x for r in h.values()], [r.n for r in h.values()]))
