"""The features of a client: its images embedded by a frozen or trained backbone. They stay in the client's folder."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fdamed import __version__
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, digest_file
from fdamed.core.rng import stream
from fdamed.data.loader import load
from fdamed.data.manifest import PARTS
from fdamed.models.flat import digest_weights
from fdamed.pipeline.clients import resident
from fdamed.pipeline.paths import FROZEN, Places, needed, rows_in, weights_in
from fdamed.training.local import embed


class Embedded(NamedTuple):
    """A client's features with the rows that they belong to."""

    z: Tensor
    """(n, d) float32, in the order of the cache."""
    rows: pd.DataFrame
    backbone: Tensor
    """The digest of the weights that made them."""


def write(config: Config, client: str, backbone: str, target: str, seed: int, threads: int) -> None:
    """Embed every image of the client's cache and write the file, with the digests of weights and images."""
    torch.set_num_threads(threads)
    places = Places.of(config)
    made_by = "init" if backbone == FROZEN else "federate"
    path = needed(places.weights(backbone, target, seed), made_by)
    model = resident(config)
    model.load(weights_in(path, made_by, model.layout))
    order = needed(places.client(client) / "order.parquet", "cache")
    data = load(places.client(client), PARTS, noise=config.split.noise if client == target else 0.0)
    z = embed(model, data, rng=stream(seed, client, "features", "noise"))
    about = {"theta": digest_file(path), "order": digest_file(order), "backbone": backbone, "fdamed": __version__}
    with atomic(places.features(client, backbone, target, seed)) as draft:
        save_file({"z": z.contiguous(), "backbone": digest_weights(model.read())}, draft, metadata=about)


def read(config: Config, client: str, backbone: str, target: str, seed: int) -> Embedded:
    """A client's features, if they are of its current images."""
    places = Places.of(config)
    path = needed(places.features(client, backbone, target, seed), "features")
    order = places.client(client) / "order.parquet"
    rows = rows_in(order, "cache")
    fix = f"Run `fdamed features` again for {client}."
    try:
        with safe_open(path, framework="pt") as file:
            about, z, made_with = file.metadata() or {}, file.get_tensor("z"), file.get_tensor("backbone")
    except (SafetensorError, OSError):
        raise FdamedError("the features are damaged", str(path), fix) from None
    if about.get("order") != digest_file(order) or len(z) != len(rows):
        raise FdamedError("the features belong to other images", str(path), fix)
    return Embedded(z, rows, made_with)
