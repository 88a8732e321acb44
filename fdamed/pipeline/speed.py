"""How fast this machine trains a study's network, beside a loop written by hand, and how much memory that takes."""

from __future__ import annotations

import math
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fdamed.config.policy_checks import Images, most_images, training_images
from fdamed.config.runs import WARMUP
from fdamed.config.study import Config
from fdamed.core.files import read_json
from fdamed.core.rng import Stream
from fdamed.data.loader import Labeled
from fdamed.models.backbone import build, initialize
from fdamed.models.flat import FlatModel
from fdamed.pipeline.paths import Places
from fdamed.training.determinism import deterministic
from fdamed.training.input import as_input
from fdamed.training.local import PREDICTED, fit
from fdamed.training.precision import HALF, allow_tf32, autocast

BATCHES, TURNS, FEW = 3, 3, 8
OVERHEAD, WORKSPACE = 600e6, 0.2
"""Bytes of a CUDA context with cuDNN, and what convolutions borrow as a share of the activations: rules of thumb."""


@dataclass(frozen=True)
class Speed:
    images_per_s: float
    bare_images_per_s: float
    ratio: float
    """Of the two, in pairs taken in turns."""
    peak_mb: int
    """On a GPU what torch has allocated there, else of this whole process."""


def images_of(config: Config, n: int) -> Labeled:
    """Random images of the study's size."""
    rng, side = np.random.default_rng(0), config.image.size
    if config.model.backbone == "mlp":
        x: NDArray[Any] = rng.standard_normal((n, config.model.inputs), dtype=np.float32)
    else:
        shape = (n, side, side) if config.model.channels == 1 else (n, side, side, 3)
        x = rng.integers(0, 256, shape, dtype=np.uint8)
    return Labeled(x, rng.integers(0, config.model.classes, n), {})


def measure(config: Config, device: torch.device, seconds: float) -> Speed:
    """Train both ways in turns for about so long, at least three turns after a first one that does not count."""
    recipe = config.train.source.model_copy(update={"epochs": 1, "steps": None})  # the bare loop takes one epoch
    precision = config.train.precision
    data = images_of(config, BATCHES * recipe.batch)
    allow_tf32(precision)
    network = build(config.model)
    initialize(network, torch.Generator().manual_seed(0))
    model = FlatModel(network, device)

    def trained() -> None:
        deterministic()  # as in `fdamed federate`
        fit(model, data, recipe, Stream(0), precision=precision)
        deterministic("default")

    ways = trained, _bare(config, data, device)
    pairs: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(pairs) <= TURNS or time.perf_counter() < end:
        pairs.append((_timed(ways[0], device), _timed(ways[1], device)))
    ours, bare = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
    ratio = statistics.median(b / a for a, b in pairs[1:])
    return Speed(round(len(data) / ours, 1), round(len(data) / bare, 1), round(ratio, 3), _peak_mb(device))


def _bare(config: Config, data: Labeled, device: torch.device) -> Callable[[], Any]:
    """Somebody's own loop: images on the device, channels_last, fused Adam."""
    net = build(config.model)
    initialize(net, torch.Generator().manual_seed(0))
    net = net.to(device).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    images, labels = torch.from_numpy(data.images).to(device), torch.from_numpy(data.y).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=device.type != "mps")
    precision, size = config.train.precision, config.train.source.batch

    def epoch() -> None:
        order = torch.randperm(len(data)).to(device)
        for start in range(0, len(data), size):
            rows = order[start : start + size]
            with autocast(device, precision):
                loss = F.cross_entropy(net(as_input(images[rows])), labels[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return epoch


def _timed(way: Callable[[], Any], device: torch.device) -> float:
    begin = time.perf_counter()
    way()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter() - begin


def _peak_mb(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device) // 10**6)
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 10**6)


def seconds_per_image(config: Config) -> float:
    """CPU seconds of a training step for each image of a small batch: a rough guide, also on a busy machine."""
    images = as_input(torch.from_numpy(images_of(config, FEW).images))
    network, taken = build(config.model).train(), math.inf
    for _ in range(3):  # the first also sets up libraries
        begin = time.process_time()
        network(images).sum().backward()
        taken = min(taken, time.process_time() - begin)
        if taken > 1:
            break
    return taken / FEW


def images_to_train(config: Config, known: Any, sizes: Images | None = None) -> int:
    """Images that all runs train on, repeated ones counted; without `sizes`, an upper bound before the split is made.

    Without what methods compute beside local training, and as if no answer were remembered.
    """
    cohort = Places.of(config).root / "cohort.json"
    if sizes is None and cohort.is_file():
        sizes = {client: entry["images"] for client, entry in read_json(cohort)["clients"].items()}
    sizes = most_images(config) if sizes is None else sizes
    total = 0
    for run in config.expanded_runs().values():
        for name, phase in config.phases(run).items():
            entry = known[phase.method]
            if name == WARMUP or entry.get("classical"):  # a warm-up's rounds are among those of the run
                continue
            rounds = config.train_of(phase).rounds * entry["length"]
            for target in config.split.targets:
                asked = training_images(phase, config, entry, target, sizes)
                total += rounds * sum(recipe.images_seen(n) for _, recipe, n in asked)
    return total * len(config.seeds)


def largest_layer(network: torch.nn.Module, x: Tensor) -> int:
    """Bytes of the largest input and output that a layer holds together when nothing is kept for a gradient."""
    found = [0]

    def note(_: torch.nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        found.append(sum(t.numel() * t.element_size() for t in (*given, out)))

    layers = [module for module in network.modules() if not list(module.children())]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    with torch.inference_mode():
        network.eval()(x)
    for hook in hooks:
        hook.remove()
    return max(found)


def gpu_memory(config: Config) -> dict[str, int]:
    """Bytes that training takes on a GPU, by what for: parameters, activations of a batch, CUDA; images come on top.

    Activations are what autograd keeps of a forward pass of two images on the CPU; prediction is what it takes more.
    """
    network = build(config.model).train()
    phases = [phase for run in config.trained_runs().values() for phase in config.phases(run).values()]
    trains = [config.train_of(phase) for phase in phases] or [config.train]
    each = [(max(t.source.batch, t.target.batch), 0.5 if t.precision in HALF else 1.0) for t in trains]
    size, half = max(each, key=lambda pair: pair[0] * pair[1])
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    x = as_input(torch.from_numpy(images_of(config, 2).images))
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        network(x)
    parameters = 4 * sum(p.numel() for p in network.parameters())
    weights = {p.untyped_storage().data_ptr() for p in network.parameters()}
    activations = sum(n for place, n in kept.items() if place not in weights) * size / 2 * half * (1 + WORKSPACE)
    prediction = largest_layer(network, x) * PREDICTED / len(x)
    return {
        "weights, gradients and moments": 4 * parameters,
        f"activations of {size} images": int(activations),
        f"prediction of {PREDICTED} images, beyond that": int(max(0.0, prediction - activations)),
        "CUDA": int(OVERHEAD),
    }
