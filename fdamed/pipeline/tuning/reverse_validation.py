"""Reverse validation (Zhong et al. 2010; Ganin et al. 2016): a choice among candidates without any label of the target.

A candidate labels the target's training images. A new network learns these labels at the target, from the study's
initial weights, and is judged on the sources' labeled images: labels that were learned from the sources and brought
back to them. A candidate whose features have collapsed gives labels from which nothing can be learned. To do this, a
hospital sends one model and each source one score for each candidate.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fdamed.config.study import Recipe
from fdamed.core.rng import stream
from fdamed.data.loader import Labeled, load
from fdamed.evaluation.metrics import scores
from fdamed.models.flat import FlatModel
from fdamed.pipeline.scoring import initial_model, trained_model
from fdamed.pipeline.selection import StudyRun
from fdamed.training.local import fit, predict

EPOCHS = 10
"""Of the reverse network."""
PARTS = ("train", "adapt")


def reverse_scores(candidates: Mapping[str, StudyRun], recipe: Recipe, model: FlatModel) -> dict[str, dict[str, float]]:
    """Source -> candidate -> AUC of its reverse network there; accuracy with several classes.

    All reverse networks train by `recipe`, whatever learning rate a candidate has: they are the yardstick.
    """
    out: dict[str, dict[str, float]] = {}
    for name, candidate in candidates.items():
        reverse = _reverse_network(candidate, recipe, model)
        for source in (client for client in candidate.config.split.clients if client != candidate.target):
            data = load(candidate.places.client(source), parts=PARTS)
            found = scores(data.y, predict(reverse, data))
            out.setdefault(source, {})[name] = float(found["acc"] if found["auc"] is None else found["auc"])
    return out


def _reverse_network(candidate: StudyRun, recipe: Recipe, model: FlatModel) -> FlatModel:
    """A network from the initial weights, trained on the candidate's labels of the target's images."""
    config, target, rng = candidate.config, candidate.target, stream(candidate.seed, "reverse")
    noise = config.noise_of(candidate.spec)
    images = load(candidate.places.client(target), parts=PARTS, noise=noise).without_labels()
    p = predict(trained_model(candidate, target, model), images, rng=rng.child("labels"))
    told = Labeled(images.images, np.asarray(p.argmax(1), dtype=np.int64), {}, noise=noise)
    whole = recipe.model_copy(update={"epochs": EPOCHS, "steps": None})
    reverse = initial_model(config, candidate.seed, model)
    fit(reverse, told, whole, rng.child("fit"))
    return reverse
