"""What a user reads when a configuration is wrong: one line for each problem, with the key and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import ValidationError

LONGEST = 200
"""Characters of a wrong value that are shown."""
RENAMED = {
    "cohort": "study",
    "cut": "split",
    "split.parties": "clients",
    "split.labelled": "labeled",
    "image.equalise": "equalize",
    "audit.probe": "attributes",
    "train.network": "transport",
    "train.guard": "validation",
    "train.unreliable": "faults",
    "train.source.optimiser": "optimizer",
    "train.target.optimiser": "optimizer",
    "runs.*.labelled": "labeled",
    "runs.*.optimiser": "optimizer",
    "runs.*.centre": "center",
    "runs.*.normalise_w": "normalize_w",
}
"""Keys of earlier versions, below the present names of their sections -> their present names."""


def renamed_keys(raw: Any, old: tuple[str, ...] = (), new: tuple[str, ...] = ()) -> Iterator[str]:
    """One line for each key that has another name now."""
    for key, value in raw.items() if isinstance(raw, dict) else ():
        name = RENAMED.get(_place(*new, str(key)), str(key))
        if new == ("split",) and key == "clients" and isinstance(value, int):
            name = "n_clients"
        here, there = (*old, str(key)), (*new, name)
        if name != str(key):
            yield f"`{'.'.join(here)}` is now `{'.'.join(there)}`"
        yield from renamed_keys(value, here, there)


def _place(*keys: str) -> str:
    """The place of a key in `RENAMED`: the `train` of a run is like `train`, its phases and `sweep` like the run."""
    if keys[0] == "variants":
        keys = keys[2:] or keys
    if keys[0] == "runs" and len(keys) > 2:
        rest = [key for key in keys[2:] if key not in ("warmup", "then", "sweep")]
        keys = tuple(rest) if "train" in rest[:1] else ("runs", "*", *rest)
    return ".".join(keys)


def explain(error: ValidationError, allowed_at: Callable[[tuple[int | str, ...]], list[str]]) -> str:
    """All problems that pydantic found; `allowed_at` gives the keys of the section at a location."""
    lines = []
    for problem in error.errors(include_url=False):
        location = problem["loc"]
        # Behind `split`, which has two forms, pydantic puts the name of the form: no key.
        path = [str(p) for i, p in enumerate(location) if i != 1 or location[0] != "split"]
        key = ".".join(path) or "configuration"
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
    """(did you mean `x`?), where an allowed word is close."""
    near = difflib.get_close_matches(word, allowed, n=1)
    return f" (did you mean `{near[0]}`?)" if near else ""
