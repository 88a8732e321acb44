"""The choice of one candidate of a tuned run, for one target and seed; no test image is read."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from fdamed.config.runs import candidates
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, read_json, write_json
from fdamed.core.rng import stream
from fdamed.data.loader import load
from fdamed.evaluation.metrics import scores
from fdamed.models.flat import FlatModel
from fdamed.pipeline.batching import FILES
from fdamed.pipeline.paths import needed
from fdamed.pipeline.scoring import trained_model
from fdamed.pipeline.selection import StudyRun, all_candidates
from fdamed.pipeline.tuning.reverse_validation import reverse_scores
from fdamed.pipeline.tuning.validation_parts import PART, choosers, full_counts
from fdamed.training.local import predict


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
    if run.spec.select == "reverse":
        written = run.config.expanded_runs()[run.name]  # without the values of an earlier choice
        each = reverse_scores(found, run.config.train_of(written).source, model)
    else:
        clients = choosers(run.config, run.name, run.target, full_counts(run))
        each = {client: {n: _score(candidate, client, model) for n, candidate in found.items()} for client in clients}
    for client, found_there in each.items():
        write_json(run.validation_scores(client), found_there)
    means = {n: sum(score[n] for score in each.values()) / len(each) for n in found}
    chosen = max(means, key=lambda n: means[n])
    values = candidates(run.name, run.config.expanded_runs()[run.name])
    _take(run, found[chosen], {"candidate": chosen, "values": values[chosen], "of": values, "clients": [*each]})
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
