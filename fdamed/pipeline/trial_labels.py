"""The labels on which runs can be tried before training: which runs compete, and whether folds are large enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdamed.config.policy_checks import labels_for_folds
from fdamed.config.privacy import FOLDS, local_steps
from fdamed.config.runs import Run
from fdamed.config.study import Config
from fdamed.core.disclosure import hides
from fdamed.core.errors import FdamedError
from fdamed.core.rng import Stream, stream
from fdamed.data.loader import balanced_part, load, patients
from fdamed.data.splitting.folds import folds_of
from fdamed.federation.method import REGISTRY
from fdamed.pipeline.paths import Places
from fdamed.theory.trials import is_candidate


def check_folds(config: Config, target: str, seed: int) -> None:
    """Raise before any training if no loss of a fold may leave the target; a study that asks for advice skips it."""
    places, skipped = tryable(config, target, seed)
    if skipped and not places and not config.advise:
        recipes = [config.train_of(spec).target for spec in candidates(config).values()]
        enough = max(labels_for_folds(config.minimum, recipe) for recipe in recipes)
        raise FdamedError(
            f"nothing can be tried on the labels of {target}: {skipped[0]['why']}",
            "advise",
            f"At least {enough} labeled images are needed (split.labeled, now {config.split.labeled}), and more where "
            "patients have several; or lower the minimum that the message names, if the hospital agrees.",
        )


def candidates(config: Config) -> dict[str, Run]:
    """The runs of which one round can be tried: see `is_candidate`; not with auxiliary heads or a second phase."""
    return {
        name: spec
        for name, spec in config.expanded_runs().items()
        if spec.method in REGISTRY and is_candidate(REGISTRY[spec.method]) and not (spec.auxiliary or spec.then)
    }


def regimes(config: Config) -> dict[tuple[Any, float], dict[str, Run]]:
    """(Labeled images, noise) -> the candidates there, where there are two; one that uses no labels is in all."""
    runs, whole = candidates(config), config.split.labeled
    labeled = {name: (spec.labeled or whole) if config.few_labels(spec) else None for name, spec in runs.items()}
    places = {(n, config.noise_of(runs[name])): None for name, n in labeled.items() if n is not None}
    found = {
        (n, noise): {r: s for r, s in runs.items() if labeled[r] in (n, None) and config.noise_of(s) == noise}
        for n, noise in places
    }
    return {place: there for place, there in found.items() if len(there) > 1}


def tryable(config: Config, target: str, seed: int) -> tuple[dict[tuple[Any, float], dict[str, Run]], list[Any]]:
    """The regimes whose folds are large enough, and the others with the reason."""
    places, skipped = {}, []
    for (number, noise), runs in regimes(config).items():
        y, owner = labeled_images(config, target, number, seed)
        if why := too_small(config, runs, y, owner, stream(seed, target, "folds")):
            skipped.append({"labeled": number, "noise": noise, "why": why})
        else:
            places[number, noise] = runs
    return places, skipped


def too_small(
    config: Config, runs: Mapping[str, Run], y: NDArray[np.int64], owner: NDArray[np.int64], rng: Stream
) -> str:
    """Why losses of the folds of these labeled images may not leave the target, without a count; empty: they may.

    Folds have whole patients, so their sizes are known here and not from the number of labels.
    """
    fold, minimum, cell = folds_of(y, owner, FOLDS, rng), config.minimum, config.smallest_cell
    parts = [fold == k for k in range(FOLDS)]
    if any(part.sum() < minimum.images for part in parts):
        return f"a fold has fewer than {minimum.images} images (privacy.smallest_images)"
    recipes = [config.train_of(spec).target for spec in runs.values()]
    least = min(len(y) - int(part.sum()) for part in parts)
    if any(local_steps(least, recipe) < minimum.steps for recipe in recipes):
        return f"without a fold there are fewer than {minimum.steps} local steps (privacy.smallest_steps)"
    if any(hides(int(p.sum()), int((y[p] == 1).sum()), cell, len(np.unique(owner[p]))) for p in parts):
        return f"a fold has fewer than {cell} patients, or images of a class (privacy.smallest_cell)"
    return ""


def labeled_images(config: Config, target: str, labeled: Any, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Classes and patients of the target's labeled images, or of so many of them."""
    folder = Places.of(config).client(target)
    y, owner = load(folder, parts=("adapt",)).y, patients(folder, ("adapt",))
    rows = balanced_part(y, labeled, seed) if isinstance(labeled, int) else slice(None)
    return y[rows], owner[rows]
