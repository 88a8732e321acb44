"""The choice of one candidate of a tuned run, for one target and seed; no test image is read.

The target's validation part chooses. Where the run trains on no label of the target, that part's labels would be the
only ones: then the sources choose, each on its own validation part (the training-domain validation of DomainBed).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from fdamed.config.runs import candidates
from fdamed.config.study import Config
from fdamed.core.counts import Counts, counts_of
from fdamed.core.disclosure import vague
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, read_json, write_json
from fdamed.core.rng import stream
from fdamed.data.loader import load
from fdamed.evaluation.comparison.power import part_can_choose
from fdamed.evaluation.metrics import scores
from fdamed.models.flat import FlatModel
from fdamed.pipeline.batching import FILES
from fdamed.pipeline.paths import needed
from fdamed.pipeline.scoring import trained_model
from fdamed.pipeline.selection import StudyRun, all_candidates
from fdamed.training.local import predict

PART = "val"


def choosers(config: Config, name: str, target: str, counts: Mapping[str, Counts]) -> list[str]:
    """The clients whose validation parts choose for a tuned run; an error if none has enough images of both classes.

    `counts`: those of every client in full.
    """
    labels = config.target_labels(config.expanded_runs()[name])
    asked = [target] if labels else [client for client in config.split.clients if client != target]
    able = [client for client in asked if part_can_choose(counts[client], PART)]
    if able:
        return able
    found = "; ".join(f"{client}: {_size(counts[client], config.smallest_cell)}" for client in asked)
    whose = f"the validation part of {target} is" if labels else "the validation parts of the sources are"
    raise FdamedError(
        f"{whose} too small to choose by, or of one class ({found})",
        f"runs.{name}.tune",
        "Raise `split.val`: about 20 patients of each class are enough (docs/how_to/labels_patients_seeds.md); "
        "or remove `tune`.",
    )


def check_validation(candidate: StudyRun) -> None:
    """Raise before a candidate is trained if nothing could choose among them."""
    choosers(candidate.config, candidate.candidate_of, candidate.target, _counts(candidate))


def _counts(run: StudyRun) -> dict[str, Counts]:
    return {client: counts_of(run.places.root, client) for client in run.config.split.clients}


def _size(counts: Mapping[str, Any], smallest: int) -> str:
    """Images of the validation part, and whether all are of one class."""
    images = (counts.get("images") or {}).get(PART, 0)
    positives = (counts.get("positives") or {}).get(PART)
    return f"{vague(images, smallest)} images" + (", all of one class" if images and positives in (0, images) else "")


def choose(run: StudyRun, model: FlatModel) -> str:
    """Score all candidates of a tuned run, write the chosen one's files as the run's; its folder.

    Among equals the first of the configuration is chosen.
    """
    key = (run.name, run.target, run.seed)
    found = {c.name: c for c in all_candidates(run.config) if (c.candidate_of, c.target, c.seed) == key}
    if not found:
        fix = "Name a run that has `tune`; other runs are trained by `fdamed federate`."
        raise FdamedError(f"{run.name} is not tuned: it has no candidates", f"runs.{run.name}", fix)
    for candidate in found.values():
        needed(candidate.folder / "done", f"federate --runs {candidate.key}")
    clients = choosers(run.config, run.name, run.target, _counts(run))
    each = {client: {n: _score(candidate, client, model) for n, candidate in found.items()} for client in clients}
    for client, found_there in each.items():
        write_json(run.validation_scores(client), found_there)
    means = {n: sum(each[client][n] for client in clients) / len(clients) for n in found}
    chosen = max(means, key=lambda n: means[n])
    values = candidates(run.name, run.config.expanded_runs()[run.name])
    _take(run, found[chosen], {"candidate": chosen, "values": values[chosen], "of": values, "clients": clients})
    return chosen


def _score(candidate: StudyRun, client: str, model: FlatModel) -> float:
    """AUC on the client's validation part; accuracy with several classes."""
    noise = candidate.config.noise_of(candidate.spec) if client == candidate.target else 0.0
    data = load(candidate.places.client(client), parts=(PART,), noise=noise)
    p = predict(trained_model(candidate, client, model), data, rng=stream(candidate.seed, client, PART, "noise"))
    found = scores(data.y, p)
    return float(found["acc"] if found["auc"] is None else found["auc"])


def _take(run: StudyRun, chosen: StudyRun, tuned: Mapping[str, Any]) -> None:
    """Copy the chosen candidate's files; hard links would be older than the candidates that finished after it."""
    (run.folder / FILES[-1]).unlink(missing_ok=True)
    write_json(run.folder / "run.json", read_json(chosen.folder / "run.json") | {"run": run.name, "tuned": tuned})
    pairs = [(chosen.folder / name, run.folder / name) for name in FILES if name != "run.json"]
    own = [(chosen.own_model(client), run.own_model(client)) for client in run.config.split.clients]
    for old, new in [(chosen.rounds(), run.rounds()), *(pair for pair in own if pair[0].exists()), *pairs]:
        with atomic(new, old.stat().st_size) as draft:
            shutil.copyfile(old, draft)
