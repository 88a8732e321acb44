"""KD3A's claim of a harmless bad source, on phantoms: a source with nothing but noise images gets the lowest weight.

Three honest hospitals with 300 images of 48 pixels each, a little apart in exposure, sharpness and posture, one clear
finding (consolidation), half of the images with it; the noise hospital has as many images of uniform noise, labels
drawn by lot. Eight rounds of one epoch, Adam at 1e-3, a ResNet-18 of a quarter of the width from its first weights,
KD3A with its default options.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from fdamed.config.datasets import Phantom
from fdamed.config.privacy import NO_MINIMUM
from fdamed.config.study import Model, Recipe
from fdamed.core.rng import stream
from fdamed.data.loader import Labeled
from fdamed.data.phantom import LAYOUTS, findings
from fdamed.data.phantom.population import Shift, draw_cohort
from fdamed.data.phantom.render import render
from fdamed.federation.client import Client
from fdamed.federation.server import Server
from fdamed.federation.transport.base import InProcess
from fdamed.methods.kd3a.method import KD3A
from fdamed.models.backbone import build, initialize
from fdamed.models.flat import FlatModel
from fdamed.training.local import predict

IMAGES, SIDE, ROUNDS = 300, 48, 8
TARGET, NOISE = "Asian", "noise"
SHIFTS = {
    "White": Shift(),
    "Black": Shift(gamma=0.05, noise=0.1),
    "Hispanic/Latino": Shift(exposure=0.08, blur=0.1),
    TARGET: Shift(gamma=-0.08, exposure=-0.05, position=0.1),
}
RELEASE = frozenset({"weights", "statistic", "scalar", "count"})


def one_finding(rng, domain, positive) -> NDArray[np.bool_]:
    shows = np.zeros((len(domain), len(findings.KINDS)), dtype=bool)
    shows[:, findings.KINDS.index(findings.CONSOLIDATION)] = positive
    return shows


def phantoms(seed: int) -> dict[str, Labeled]:
    """Frontal images of each hospital, half of them positive."""
    asked = Phantom(patients=4 * IMAGES, size=64, seed=seed, subtlety=0.0, concept=0.0)
    cohort = draw_cohort(asked, replace(LAYOUTS["mimic"], shows=one_finding, domains=SHIFTS))
    out = {}
    positive = cohort.images["positive"].to_numpy()
    for name in cohort.shifts:
        frontal = ((cohort.images["domain"] == name) & ~cohort.images["lateral"]).to_numpy()
        halves = [np.flatnonzero(frontal & (positive == y))[: IMAGES // 2] for y in (True, False)]
        rows = np.sort(np.concatenate(halves))
        pixels = [Image.fromarray((p >> 4).astype(np.uint8)).resize((SIDE, SIDE)) for _, p in render(cohort, rows)]
        out[name] = Labeled(np.stack([np.asarray(p) for p in pixels]), positive[rows].astype(np.int64), {})
    return out


def noise(seed: int) -> Labeled:
    rng = stream(seed, "noise").numpy
    images = rng.integers(0, 256, (IMAGES, SIDE, SIDE), dtype=np.uint8)
    return Labeled(images, rng.integers(0, 2, IMAGES), {})


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_hospital_of_noise_images_gets_the_lowest_weight_on_phantoms(seed) -> None:
    net = build(Model(width=0.25))
    initialize(net, stream(seed, "init").torch)
    model, data = FlatModel(net), phantoms(seed) | {NOISE: noise(seed)}
    truth = data[TARGET].y
    clients = {
        name: Client(
            name,
            own.without_labels() if name == TARGET else own,
            model,
            Recipe(lr=1e-3, batch=32),
            seed,
            RELEASE,
            role="target" if name == TARGET else "source",
            minimum=NO_MINIMUM,
        )
        for name, own in data.items()
    }
    federation = Server(InProcess(clients), TARGET, "kd3a")
    method = KD3A()
    state, weights = method.start(model.read()), []
    for r in range(1, ROUNDS + 1):
        federation.begin(r, ROUNDS)
        state = method.round(state, federation)
        weights.append([float(federation.notes[f"weight/{name}"]) for name in federation.sources])

    model.load(state.x)
    right = (predict(model, clients[TARGET].data).argmax(1) == truth).mean()
    assert right > 0.75  # the honest hospitals know the finding; 0.797 on one processor
    bad = federation.sources.index(NOISE)
    for seen in (torch.tensor(weights[-1]), torch.tensor(weights[ROUNDS // 2 :]).mean(0)):
        honest = torch.cat([seen[:bad], seen[bad + 1 :]])
        assert seen[bad] < 0.5 * honest.min(), seen.tolist()
