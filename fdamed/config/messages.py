"""Error messages about a configuration: one line per problem, with the key and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

LONGEST = 200
"""Characters of a wrong value that are shown."""
RENAMED = {
    "cohort": "study",
    "cut": "split",
    "parties": "clients",
    "labelled": "labeled",
    "equalise": "equalize",
    "probe": "attributes",
    "network": "transport",
    "guard": "validation",
    "unreliable": "faults",
    "optimiser": "optimizer",
    "centre": "center",
    "normalise_w": "normalize_w",
    "longest": "norms.reject_above",
    "shortened": "norms.clip_above",
    "opposed": "directions.reject_below",
    "alike": "directions.label_rate_gap",
}
"""Keys of earlier versions -> their present names, which error messages suggest."""


def explain(error: ValidationError, allowed_at: Callable[[tuple[int | str, ...]], list[str]], prefix: str = "") -> str:
    """All problems that pydantic found; `allowed_at` gives the keys of the section at a location."""
    lines = []
    for problem in error.errors(include_url=False):
        location = problem["loc"]
        # Behind `split`, which has two forms, pydantic puts the name of the form: no key.
        path = [str(p) for i, p in enumerate(location) if i != 1 or location[0] != "split"]
        key = prefix + ".".join(path) or "configuration"
        if problem["type"] == "extra_forbidden":
            allowed = allowed_at(location[:-1])
            lines.append(f"unknown key `{key}`{nearest(path[-1], allowed)}; allowed here: {', '.join(allowed)}")
        elif problem["type"] == "missing":
            lines.append(f"missing key `{key}`")
        else:
            hidden = isinstance(problem["input"], dict) or path[-1:] == ["salt"]
            given = "" if hidden else f" (given: {shortened(problem['input'])})"
            lines.append(f"`{key}`: {problem['msg'].removeprefix('Value error, ')}{given}")
    return "; ".join(lines)


def shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def nearest(word: str, allowed: list[str]) -> str:
    """(did you mean `x`?), if an allowed word is similar or the word's present name."""
    renamed = RENAMED.get(word, "")
    near = [renamed] if renamed.split(".")[0] in allowed else difflib.get_close_matches(word, allowed, n=1)
    return f" (did you mean `{near[0]}`?)" if near else ""
