"""Whose validation parts choose among the candidates of a tuned run, and whether they can.

The target's chooses. Where the run trains on no label of the target, the labels of that part would be the only ones:
then the sources choose, each on its own part (the training-domain validation of DomainBed).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fdamed.config.study import Config
from fdamed.core.counts import Counts, counts_of
from fdamed.core.disclosure import hides_classes, vague
from fdamed.core.errors import FdamedError
from fdamed.evaluation.comparison.power import part_can_choose
from fdamed.pipeline.selection import StudyRun

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
    if candidate.spec.select == "validation":
        choosers(candidate.config, candidate.candidate_of, candidate.target, full_counts(candidate))


def full_counts(run: StudyRun) -> dict[str, Counts]:
    """Client -> its counts; for its own use, not for a view."""
    return {client: counts_of(run.places.root, client) for client in run.config.split.clients}


def _size(counts: Mapping[str, Any], smallest: int) -> str:
    """Images of the validation part, and whether all are of one class, if that may be shown."""
    images = (counts.get("images") or {}).get(PART, 0)
    positives = None if hides_classes(counts, smallest) else (counts.get("positives") or {}).get(PART)
    return f"{vague(images, smallest)} images" + (", all of one class" if images and positives in (0, images) else "")
