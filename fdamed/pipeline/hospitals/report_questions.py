"""What the report asks of a hospital over a network, and what the hospital's policy lets out of the answer.

The hospital gets the finished models, scores and compares them on its own patients, and answers with aggregates: the
content of the files that a study on one machine has outside `clients/`. Predictions stay in the hospital's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fdamed.config.study import Config
from fdamed.core.counts import counts_of, study_counts
from fdamed.core.disclosure import hides_classes, hides_score, released_counts, released_score, small, too_small, vague
from fdamed.core.files import atomic, read_json, read_lines, write_json, write_lines
from fdamed.core.parts import TRAINED
from fdamed.federation.messages import WireError
from fdamed.pipeline.analyses.attributes import infer
from fdamed.pipeline.analyses.comparison import compare
from fdamed.pipeline.analyses.membership import attack
from fdamed.pipeline.batching import key
from fdamed.pipeline.clients import resident
from fdamed.pipeline.paths import Places
from fdamed.pipeline.scoring import score
from fdamed.pipeline.selection import StudyRun

INITIAL = "init"
"""In the place of a run: the initial weights of a seed."""
LEAKS = ("patients_in_two_splits", "near_duplicates")
"""What of the leakage check a hospital can know alone."""
RELEASED = "released.jsonl"
"""The hospital's own ledger: what it was asked for, and what it has sent."""
Json = dict[str, Any]
Answer = Callable[[Config, str, Mapping[str, Any], bytes], Json]


def _model(config: Config, client: str, head: Mapping[str, Any], body: bytes) -> Json:
    """Take a finished model, or initial weights, into this hospital's own folder."""
    name, places = str(head.get("run")), Places.of(config)
    if name.startswith(f"{INITIAL}/"):
        if name not in [f"{INITIAL}/{seed}" for seed in config.seeds]:
            raise WireError("the study has no such seed")
        folder = places.init(int(name.partition("/")[2]))
    else:
        one = StudyRun.federated(config, *key(name))
        folder = one.folder
        write_json(folder / "run.json", one.facts() | {"title": str(head.get("title"))})
        write_lines(folder / "ledger.jsonl", _sent_in(places, client, one.key))
    with atomic(folder / "theta.safetensors", len(body)) as draft:
        draft.write_bytes(body)
    return {}


def _sent_in(places: Places, client: str, run: str) -> list[Json]:
    """What this hospital has sent in a run, by its own ledger, as lines of the run's."""
    path = places.client(client) / RELEASED
    lines = read_lines(path) if path.exists() else []
    kinds = {kind for line in lines if line["run"] == run for kind in line["sent"]}
    return [{"from": client, "kind": kind} for kind in sorted(kinds)]


def _score(config: Config, client: str, head: Mapping[str, Any], body: bytes) -> Json:
    """The scores of a finished model on the target's test part."""
    one = StudyRun.federated(config, *key(str(head.get("run"))))
    if client != one.target:
        raise WireError("this hospital is not the target of the run")
    score(one, client, resident(config))
    return _released(read_json(one.scores(client)), config, client)


def _released(found: Json, config: Config, client: str) -> Json:
    hidden = ""
    if hides_score(found, config.smallest_cell):
        hidden = too_small(config.smallest_cell)
    elif "scalar" not in config.privacy.release:
        hidden = "the target releases no scalar"
    classes = hides_classes(counts_of(Places.of(config).root, client), config.smallest_cell)
    return released_score(found, hidden, config.smallest_cell, classes)


def _cohort(config: Config, client: str, head: Mapping[str, Any], body: bytes) -> Json:
    """Counts by part, what the leakage check found here, and rejected images; small ones are held back."""
    root, smallest = Places.of(config).root, config.smallest_cell
    ingest, leakage, full = (
        study_counts(root, "ingest.json"),
        study_counts(root, "leakage.json"),
        counts_of(root, client),
    )
    counts = released_counts(full, smallest)
    leaks = {k: vague(n, smallest) if small(n := leakage[k], smallest) else n for k in LEAKS}
    out: Json = {"ingest": ingest.get("hash"), "leakage": leaks}
    rejected = ingest.get("rejected", {})
    if "count" in config.privacy.release:
        out["rejected"] = {reason: n for reason, n in rejected.items() if not small(n, smallest)}
    else:  # the number of training images goes with every update, whatever else is held back
        counts["images"] = {part: n if part in TRAINED else None for part, n in full["images"].items()}
        for what in ("patients", "positives"):
            counts[what] = dict.fromkeys(full["images"])
        out |= {"rejected": {}, "leakage": {}}
    return out | {"counts": counts, "held_back": len(out["rejected"]) < len(rejected)}


def _analysis(of: Callable[[Config, str], Json]) -> Answer:
    """An analysis of all finished models; `withheld` in its place says why nothing is let out."""

    def answer(config: Config, client: str, head: Mapping[str, Any], body: bytes) -> Json:
        if "scalar" not in config.privacy.release:
            return {"withheld": f"{client} releases no scalar (privacy.release)"}
        return of(config, client)

    return answer


ANSWERS: dict[str, tuple[str, Answer]] = {
    "model": ("", _model),
    "score": ("scalar", _score),
    "cohort": ("count", _cohort),
    "audit": ("scalar", _analysis(compare)),
    "attributes": ("scalar", _analysis(infer)),
    "membership": ("scalar", _analysis(attack)),
}
"""Question -> the kind of what is let out, and the answer to it."""
