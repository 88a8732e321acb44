"""Membership inference: whether the models reveal which patients of one client trained them.

The client has both: patients whose images were used for training, and those of its test split. Each finished model that
it contributed to is attacked by the loss of its images. Nothing about single patients is kept; AUCs and rates go out.

Examples:
    fdamed membership --config config/config.yaml --client edema
"""

from __future__ import annotations

import argparse
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fdamed.cli.options import add_client, add_config, add_threads, read_config
from fdamed.config.runs import Run
from fdamed.config.study import Config
from fdamed.core.files import write_json
from fdamed.pipeline.paths import FROZEN, Places, clinical, needed, rows_in, weights_in
from fdamed.pipeline.scoring import trained_model
from fdamed.pipeline.selection import StudyRun, check_known, is_classical

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from fdamed.data.loader import Labeled
    from fdamed.models.flat import FlatModel

log = logging.getLogger(__name__)
GROUP = "analyze", 4
PRIVATE = True
MEMBERS, OTHERS = ("train", "adapt"), ("test",)
TRAINED = frozenset({"weights", "update", "features"})
"""Kinds that a hospital sends only where its images have been used."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_client(parser, "the client whose patients are attacked")
    add_threads(parser)


def run(arguments: argparse.Namespace) -> None:
    import torch

    config = read_config(arguments)
    clinical(config)
    check_known("client", arguments.client, config.split.clients)
    torch.set_num_threads(arguments.threads)
    content = asked(config, arguments.client)
    path = Places.of(config).root / "membership" / f"{arguments.client}.json"
    write_json(path, content)
    attacked = sum(len(t["runs"]) for t in content["targets"].values())
    log.info(f"{attacked} runs attacked with the patients of {arguments.client}: {path}")


@dataclass(frozen=True, eq=False)
class Patients:
    """The images that are asked about: whose they are, and what they are."""

    rows: pd.DataFrame
    data: Labeled
    owner: NDArray[Any]
    count: int


def asked(config: Config, client: str) -> dict[str, Any]:
    """What membership/{client}.json holds."""
    from fdamed.core.disclosure import rounded
    from fdamed.evaluation import membership_inference as membership
    from fdamed.evaluation.intervals import LEVEL
    from fdamed.pipeline.clients import resident

    model, here = resident(config), _patients(config, client)
    start = [_likelihood(config, None, client, s, client, model, here) for s in config.seeds]
    inside = here.rows["split"].isin(MEMBERS).to_numpy()
    content = {
        "client": client,
        "level": LEVEL,
        "gate": membership.GATE,
        "untrained": _attack(config, client, here, [inside] * len(start), start),
        "targets": {target: _of_target(config, client, target, model, here) for target in config.split.targets},
    }
    told: dict[str, Any] = rounded(content)
    return told


def _patients(config: Config, client: str) -> Patients:
    """Images of the hospital's train, adapt and test splits, `audit.images` at most, whole patients."""
    import numpy as np

    from fdamed.core.rng import stream
    from fdamed.data.loader import Labeled, load
    from fdamed.evaluation.attribute_inference import chosen

    folder = Places.of(config).client(client)
    rows = rows_in(folder / "order.parquet", "cache")
    there = np.flatnonzero(rows["split"].isin((*MEMBERS, *OTHERS)))
    names = rows["patient"].to_numpy()[there].tolist()
    here = there[chosen(names, config.audit.images, stream(0, config.study, client, "membership"))]
    whole = load(folder, tuple(sorted(set(rows["split"]))))
    _, owner = np.unique(rows["patient"].to_numpy()[here], return_inverse=True)
    data = Labeled(whole.images[here], whole.y[here], {})
    kept = rows.assign(place=range(len(rows))).iloc[here].reset_index(drop=True)
    return Patients(kept, data, owner, int(owner.max(initial=-1)) + 1)


def _of_target(config: Config, client: str, target: str, model: FlatModel, here: Patients) -> dict[str, Any]:
    """Run -> how well an attacker tells members, by the loss and by the loss beside that of models without them."""
    import numpy as np

    found: dict[str, dict[int, NDArray[Any]]] = {}
    without = []
    specs = {n: s for n, s in config.expanded_runs().items() if _asks(config, s)}
    for name, spec in specs.items():
        for seed in config.seeds:
            if not Places.of(config).weights(name, target, seed).exists():
                continue
            one = StudyRun(config, name, target, seed, spec)
            said = _likelihood(config, one, target, seed, client, model, here)
            if _contributed(one, client):
                found.setdefault(name, {})[seed] = said
            else:
                without.append(said)
    usual = np.mean(without, axis=0) if without else None
    runs = {}
    for name, by_seed in found.items():
        inside = [_inside(config, specs[name], client, target, seed, here) for seed in by_seed]
        plain = _attack(config, client, here, inside, list(by_seed.values()))
        if plain is not None:
            beside = None if usual is None else [said - usual for said in by_seed.values()]
            calibrated = None if beside is None else _attack(config, client, here, inside, beside)
            runs[name] = {"seeds": sorted(by_seed), "loss": plain, "calibrated": calibrated}
    return {"runs": runs, "suppressed": sorted(set(found) - set(runs)), "references": len(without)}


def _asks(config: Config, spec: Run) -> bool:
    """Whether a run has a model that leaves: classical rows have none, and where hospitals keep their own it stays."""
    from fdamed.pipeline.phases import phases

    return not is_classical(spec) and not phases(config, spec)[-1].method.keeps


def _contributed(one: StudyRun, client: str) -> bool:
    """Whether the client sent anything made from its images, by the ledger of the run."""
    path = needed(one.folder / "ledger.jsonl", "federate")
    with open(path, encoding="utf-8") as lines:
        return any(line["from"] == client and line["kind"] in TRAINED for line in map(json.loads, lines))


def _inside(config: Config, spec: Run, client: str, target: str, seed: int, here: Patients) -> NDArray[Any]:
    """Which images (n,) the hospital trained on: as the target with few labels, only those."""
    import numpy as np

    from fdamed.data.loader import balanced_part
    from fdamed.pipeline.phases import phases

    split = here.rows["split"]
    kinds = [type(phase.method) for phase in phases(config, spec)]
    few = any(k.target_labels for k in kinds) and not any(k.every_target_label for k in kinds)
    if client != target or not few:
        return split.isin(MEMBERS).to_numpy()
    if spec.labeled is None:
        return (split == "adapt").to_numpy()
    rows = rows_in(Places.of(config).client(client) / "order.parquet", "cache")
    labeled = np.flatnonzero(rows["split"] == "adapt")
    part = labeled[balanced_part(rows["y"].to_numpy()[labeled].astype(np.int64), spec.labeled, seed)]
    return here.rows["place"].isin(part).to_numpy()


def _likelihood(
    config: Config, one: StudyRun | None, target: str, seed: int, client: str, model: FlatModel, here: Patients
) -> NDArray[Any]:
    """Log-likelihood (n,) of the images' labels under the model of a run; None: under the initial weights."""
    from dataclasses import replace

    from fdamed.core.rng import stream
    from fdamed.evaluation.membership_inference import surprise
    from fdamed.training.local import predict

    data = here.data
    if one is None:
        model.load(weights_in(Places.of(config).weights(FROZEN, target, seed), "init", model.layout))
    else:
        model = trained_model(one, client, model)
        data = replace(data, noise=config.noise_of(one.spec) if client == target else 0.0)
    return surprise(data.y, predict(model, data, rng=stream(seed, client, "membership", "noise")))


def _attack(
    config: Config, client: str, here: Patients, inside: list[NDArray[Any]], said: list[NDArray[Any]]
) -> dict[str, Any] | None:
    """The attack on the patients; who has images on both sides (in a split that leaks) is a member by those inside."""
    import numpy as np

    from fdamed.core.rng import stream
    from fdamed.evaluation.membership_inference import attacked, by_patient, within_class

    outside = here.rows["split"].isin(OTHERS).to_numpy()
    members, values = [], []
    for mine, loss in zip(inside, said, strict=True):
        member = np.bincount(here.owner[mine], minlength=here.count) > 0
        others = outside & ~member[here.owner]
        loss = within_class(loss, here.data.y, others)
        used = (mine | others) & np.isfinite(loss)
        value = by_patient(loss[used], here.owner[used], here.count)
        value[np.bincount(here.owner[used], minlength=here.count) == 0] = np.nan
        members.append(member)
        values.append(value)
    draws = stream(0, config.study, client, "membership", "bootstrap")
    return attacked(members, values, draws, config.privacy.smallest_cell)
