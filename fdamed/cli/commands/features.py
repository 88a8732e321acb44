"""Embed the images of one client with a frozen or trained backbone; the features stay there.

Examples:
    fdamed features --config config/config.yaml --client edema --target edema --seed 0
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fdamed import __version__
from fdamed.cli.options import add_config, read_config
from fdamed.config.loader import backbones
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, digest_file
from fdamed.pipeline.paths import FROZEN, Places, needed, rows_in, weights_in

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

GROUP = "run", 3
SPLITS = ("train", "adapt", "val", "test")


@dataclass(frozen=True)
class Embedded:
    """A hospital's features with the rows that they belong to."""

    z: Tensor
    """(n, d) float32, in the order of the cache."""
    rows: pd.DataFrame
    backbone: Tensor
    """The fingerprint of the weights that made them."""
    order: str
    """Digest of the rows' file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--client", required=True, help="the hospital whose images are embedded")
    parser.add_argument(
        "--backbone", default=FROZEN, metavar="RUN", help="whose weights: init (the default) or a finished run"
    )
    parser.add_argument("--target", required=True, metavar="CLIENT", help="the target of that run")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    for what, value, known in (
        ("client", arguments.client, list(config.split.clients)),
        ("target", arguments.target, list(config.split.targets)),
        ("backbone", arguments.backbone, backbones(config)),
        ("seed", arguments.seed, list(config.seeds)),
    ):
        if value not in known:
            fix = f"Choose one of: {', '.join(map(str, known))}."
            raise FdamedError(f"the configuration has no {what} {value!r}", "command line", fix)
    write(config, arguments.client, arguments.backbone, arguments.target, arguments.seed, arguments.threads)


def write(config: Config, client: str, backbone: str, target: str, seed: int, threads: int) -> None:
    """Embed every image of the hospital's cache and write the file, with where it came from."""
    import torch
    from safetensors.torch import save_file

    from fdamed.classical.messages import fingerprint
    from fdamed.core.rng import stream
    from fdamed.data.loader import load
    from fdamed.pipeline.clients import resident
    from fdamed.training.local import embed

    torch.set_num_threads(threads)
    places = Places.of(config)
    made_by = "init" if backbone == FROZEN else "federate"
    path = needed(places.weights(backbone, target, seed), made_by)
    model = resident(config)
    model.load(weights_in(path, made_by, model.layout))
    order = needed(places.client(client) / "order.parquet", "cache")
    data = load(places.client(client), SPLITS, noise=config.split.noise if client == target else 0.0)
    z = embed(model, data, rng=stream(seed, client, "features", "noise"))
    about = {"theta": digest_file(path), "order": digest_file(order), "backbone": backbone, "fdamed": __version__}
    with atomic(places.features(client, backbone, target, seed)) as draft:
        save_file({"z": z.contiguous(), "backbone": fingerprint(model.read())}, draft, metadata=about)


def read(config: Config, client: str, backbone: str, target: str, seed: int) -> Embedded:
    """A hospital's features, if they are of the images that are there now."""
    from safetensors import SafetensorError, safe_open

    places = Places.of(config)
    path = needed(places.features(client, backbone, target, seed), "features")
    order = places.client(client) / "order.parquet"
    rows, now = rows_in(order, "cache"), digest_file(order)
    fix = f"Run `fdamed features` again for {client}."
    try:
        with safe_open(path, framework="pt") as file:
            about, z, made_with = file.metadata() or {}, file.get_tensor("z"), file.get_tensor("backbone")
    except (SafetensorError, OSError):
        raise FdamedError("the features are damaged", str(path), fix) from None
    if about.get("order") != now or len(z) != len(rows):
        raise FdamedError("the features are of other images", str(path), fix)
    return Embedded(z, rows, made_with, now)
