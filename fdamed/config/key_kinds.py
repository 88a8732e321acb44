"""What each key of the configuration decides: the data, the training, only the views of a finished study, or speed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DATA, TRAINING, VIEW, SPEED = "data", "training", "view", "speed"
KINDS = {
    "study": DATA,  # the folder of all files: another one is another study
    "results": DATA,
    "data": DATA,
    "phantom": DATA,
    "split": DATA,
    "image": DATA,
    "model": TRAINING,
    "train": TRAINING,
    "privacy": TRAINING,
    "privacy.smallest_cell": VIEW,
    "privacy.public": VIEW,  # it hides nothing and refuses no training; what is trained stays the same
    "runs": TRAINING,
    "seeds": TRAINING,
    "batch_runs": TRAINING,
    "answers_mb": SPEED,  # no file depends on it
    "network": SPEED,  # where the server is, and how long it waits
    "advise": VIEW,
    "audit": VIEW,
    "tracking": VIEW,
    "published": VIEW,
}
"""Section, or key with its section -> its kind; a key without an entry is of its section's kind.

A view is MLflow, the report, or an analysis of trained models: changing its keys never makes data nor trains again.
"""


def kind_of(path: str) -> str:
    """The kind of a key, given with its sections: `privacy.smallest_cell`."""
    while path not in KINDS:
        path, dot, _ = path.rpartition(".")
        if not dot:
            raise KeyError(path)
    return KINDS[path]


def without_views(sections: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without the keys that decide views or speed only, and without sections that had no others."""

    def kept(content: Mapping[str, Any], above: str) -> dict[str, Any]:
        inside = {key: value for key, value in content.items() if KINDS.get(f"{above}{key}") not in (VIEW, SPEED)}
        parts = {k: kept(v, f"{above}{k}.") if isinstance(v, Mapping) else v for k, v in inside.items()}
        return {k: v for k, v in parts.items() if v != {} or content[k] == {}}

    return kept(sections, "")
