"""Membership inference: whether the models reveal which patients of one client trained them.

The client has both: patients whose images were used for training, and those of its test part. It attacks each
finished model that it contributed to by the loss of its images.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fdamed.config.study import Config
from fdamed.core.disclosure import hides, released_attack, rounded, small
from fdamed.core.rng import stream
from fdamed.data.loader import Labeled, balanced_part, load
from fdamed.evaluation.attribute_inference import chosen
from fdamed.evaluation.intervals import LEVEL
from fdamed.evaluation.membership_inference import GATE, attack_patients, surprise
from fdamed.models.flat import FlatModel
from fdamed.pipeline.clients import resident
from fdamed.pipeline.paths import Places, needed, rows_in
from fdamed.pipeline.phases import phases
from fdamed.pipeline.scoring import finished_runs, initial_model, trained_model
from fdamed.pipeline.selection import StudyRun
from fdamed.training.local import predict

MEMBERS, OTHERS = ("train", "adapt"), ("test",)
TRAINED = frozenset({"weights", "update", "features", "masked"})
"""Kinds that a client sends only if its images have been used."""


def attack(config: Config, client: str) -> dict[str, Any]:
    """The content of membership/{client}.json."""
    model, images = resident(config), Images.of(config, client)
    initial = [images.likelihood(initial_model(config, seed, model), seed) for seed in config.seeds]
    inside = images.rows["split"].isin(MEMBERS).to_numpy()
    content: dict[str, Any] = rounded(
        {
            "client": client,
            "level": LEVEL,
            "gate": GATE,
            "untrained": images.attack(config, initial, [inside] * len(initial)),
            "targets": {target: _attack_runs(config, target, model, images) for target in config.split.targets},
        }
    )
    return content


@dataclass(frozen=True, eq=False)
class Images:
    """The images of a client with which models are attacked."""

    client: str
    order: pd.DataFrame
    """All images of the client."""
    chosen: NDArray[Any]
    """Positions in `order` of the chosen images of the train, adapt and test parts."""
    data: Labeled

    @classmethod
    def of(cls, config: Config, client: str) -> Images:
        """Choose at most `audit.images` images, of whole patients."""
        folder = Places.of(config).client(client)
        order = rows_in(folder / "order.parquet", "cache")
        used = np.flatnonzero(order["split"].isin((*MEMBERS, *OTHERS)))
        patients = order["patient"].to_numpy()[used].tolist()
        here = used[chosen(patients, config.audit.images, stream(0, config.study, client, "membership"))]
        whole = load(folder, tuple(sorted(set(order["split"]))))
        return cls(client, order, here, Labeled(whole.images[here], whole.y[here], {}))

    @property
    def rows(self) -> pd.DataFrame:
        return self.order.iloc[self.chosen]

    def likelihood(self, model: FlatModel, seed: int, noise: float = 0.0) -> NDArray[Any]:
        """Log-likelihood (n,) of the labels under a model."""
        rng = stream(seed, self.client, "membership", "noise")
        return surprise(self.data.y, predict(model, replace(self.data, noise=noise), rng=rng))

    def inside(self, run: StudyRun) -> NDArray[Any]:
        """Which images (n,) the client trained on: a target with few labels, only on those."""
        methods = [type(phase.method) for phase in phases(run.config, run.spec)]
        few = any(m.target_labels for m in methods) and not any(m.every_target_label for m in methods)
        if self.client != run.target or not few:
            return self.rows["split"].isin(MEMBERS).to_numpy()
        labeled = np.flatnonzero(self.order["split"] == "adapt")
        if run.spec.labeled is not None:
            y = self.order["y"].to_numpy(dtype=np.int64)[labeled]
            labeled = labeled[balanced_part(y, run.spec.labeled, run.seed)]
        return np.isin(self.chosen, labeled)

    def attack(
        self, config: Config, likelihoods: list[NDArray[Any]], inside: list[NDArray[Any]]
    ) -> dict[str, Any] | None:
        """The attack; None where members or others are so few, or of one class so few, that no score may be shown."""
        _, owner = np.unique(self.rows["patient"].to_numpy(), return_inverse=True)
        outside = self.rows["split"].isin(OTHERS).to_numpy()
        for side in (outside, *inside):
            patients = len(np.unique(owner[side]))
            if hides(int(side.sum()), int(self.data.y[side].sum()), config.smallest_cell, patients):
                return None
        random = stream(0, config.study, self.client, "membership", "bootstrap")
        smallest = config.smallest_cell
        found = attack_patients(likelihoods, inside, outside, owner, self.data.y, random, smallest)
        parts = self.order.groupby("split")["patient"].nunique()
        if found is None or not any(small(int(parts.get(part, 0)), smallest) for part in (*MEMBERS, *OTHERS)):
            return found
        return released_attack(found, owner.max() + 1, smallest)


def _attack_runs(config: Config, target: str, model: FlatModel, images: Images) -> dict[str, Any]:
    """Run -> the attack by the loss, and by its difference from the loss of models without these members."""
    found: dict[str, list[tuple[StudyRun, NDArray[Any]]]] = {}
    references = []
    for run in finished_runs(config, target):
        if run.method.keeps:  # its model stays with each client
            continue
        noise = config.noise_of(run.spec) if images.client == target else 0.0
        likelihood = images.likelihood(trained_model(run, images.client, model), run.seed, noise)
        if _contributed(run, images.client):
            found.setdefault(run.name, []).append((run, likelihood))
        else:
            references.append(likelihood)
    usual = np.mean(references, axis=0) if references else None
    runs = {}
    for name, by_seed in found.items():
        inside, likelihoods = [images.inside(run) for run, _ in by_seed], [value for _, value in by_seed]
        loss = images.attack(config, likelihoods, inside)
        if loss is not None:
            calibrated = None if usual is None else images.attack(config, [v - usual for v in likelihoods], inside)
            runs[name] = {"seeds": sorted(run.seed for run, _ in by_seed), "loss": loss, "calibrated": calibrated}
    return {"runs": runs, "suppressed": sorted(set(found) - set(runs)), "references": len(references)}


def _contributed(run: StudyRun, client: str) -> bool:
    """Whether the client sent anything made from its images, by the ledger of the run."""
    with open(needed(run.folder / "ledger.jsonl", "federate"), encoding="utf-8") as lines:
        return any(line["from"] == client and line["kind"] in TRAINED for line in map(json.loads, lines))
