"""Attribute inference: how well sex, age, race and view can be predicted from the features.

One pass over at most `audit.images` images of the target with each finished model, and with the initial weights.
Features and predictions for single images are not written.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from fdamed.config.study import Config
from fdamed.core.counts import counts_of
from fdamed.core.disclosure import auc_decimals, released_total, rounded, small
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.data.loader import Labeled, load
from fdamed.data.manifest import PARTS
from fdamed.evaluation.ablations import without_heads
from fdamed.evaluation.attribute_inference import FOLDS, UNTRAINED, Question, chosen, questions, read, results
from fdamed.evaluation.audit import coarse
from fdamed.evaluation.intervals import LEVEL
from fdamed.models.flat import FlatModel
from fdamed.pipeline.clients import resident
from fdamed.pipeline.paths import Places, rows_in
from fdamed.pipeline.scoring import finished_runs, initial_model, trained_model
from fdamed.training.local import embed

Predictions = dict[str, dict[int, list["NDArray[Any]"]]]
"""Run -> seed -> predictions, one array for each attribute."""


def infer(config: Config, target: str) -> dict[str, Any]:
    """The content of attributes/{target}.json."""
    rows = rows_in(Places.of(config).client(target) / "order.parquet", "cache")
    here = chosen(rows["patient"].tolist(), config.audit.images, stream(0, config.study, target, "probe"))
    random = stream(0, config.study, target, "questions")
    asked = questions(rows.iloc[here].reset_index(drop=True), config.smallest_cell, random)
    content: dict[str, Any] = {"target": target, "level": LEVEL, "attributes": {}}
    total = released_total(counts_of(Places.of(config).root, target), "images", config.smallest_cell)
    shown = total is not None and not small(total - len(rows), config.smallest_cell)  # the others are unreadable
    content["images"] = len(here) if shown or config.smallest_cell == 1 else None
    if not asked:
        return content
    found, specs = _predictions(config, target, here, asked), config.expanded_runs()
    content["runs"] = {name: sorted(by_seed) for name, by_seed in found.items()}
    for i, question in enumerate(asked):
        of_question = {name: {s: p[i] for s, p in by_seed.items()} for name, by_seed in found.items()}
        runs, pairs = results(question, of_question, without_heads(specs))
        heads = [pair | {"heads": list(specs[pair["run"]].auxiliary.heads)} for pair in pairs]  # type: ignore[union-attr]
        if config.smallest_cell > 1:
            decimals = auc_decimals(len(question.rows), config.smallest_cell, FOLDS)
            runs = {name: coarse(found, decimals) for name, found in runs.items()}
            heads = [coarse(pair, decimals) for pair in heads]
        about = {"classes": list(question.classes), "runs": runs, "heads": heads}
        content["attributes"][question.name] = rounded(about)
    return content


def _predictions(config: Config, target: str, here: NDArray[Any], asked: list[Question]) -> Predictions:
    """What probes predict from the features of every model."""
    model, whole = resident(config), load(Places.of(config).client(target), PARTS, noise=config.split.noise)
    data = Labeled(whole.images[here], whole.y[here], {}, whole.noise)

    def predict(network: FlatModel, seed: int) -> list[NDArray[Any]]:
        features = embed(network, data, rng=stream(seed, target, "probe", "noise")).numpy()
        return [read(question, features) for question in asked]

    runs = list(finished_runs(config, target))
    if not runs:
        raise FdamedError("no run is finished at this target", target, "Run `fdamed federate` first.")
    out: Predictions = {UNTRAINED: {seed: predict(initial_model(config, seed, model), seed) for seed in config.seeds}}
    for one in runs:
        trained = trained_model(one, target, model)
        inner = getattr(trained.module, "network", None)  # where more than the network predicts, it is inside
        network = trained if inner is None else FlatModel(inner, trained.theta.device)
        out.setdefault(one.name, {})[one.seed] = predict(network, one.seed)
    return out
