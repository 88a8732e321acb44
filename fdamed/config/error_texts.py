"""Error messages about a configuration: one line per problem, with the key and what is allowed."""

from __future__ import annotations

from datetime import date
from typing import Any

from pydantic import ValidationError

from fdamed.config.base import NAME
from fdamed.core.errors import nearest

RENAMED = {
    "cohort": "study",
    "cut": "split",
    "parties": "clients",
    "network": "transport",
    "guard": "validation",
    "unreliable": "faults",
    "probe": "attributes",
    "quorum": "train.quorum",
}
"""Old key -> its present name in the same section, where the two are not alike, or (with a dot) in another one."""
WORDS = {"dict": "a section with keys", "model": "a section with keys", "list": "a list", "tuple": "a list"}
WORDS |= {"string": "text", "bool": "true or false", "int": "a whole number", "float": "a number"}
"""The type that pydantic misses, as who writes YAML knows it."""
PATTERNS = {NAME: "should begin with a letter and have only letters (A to Z), digits and `_`, at most 64 of them"}
"""Pattern -> what it asks for."""
OF_FILES = ["variant", "variants"]
"""Keys of a file that are none of the configuration that is made of it."""
LONGEST = 200
"""Characters of a wrong value that are shown."""


def explain(error: ValidationError, prefix: str = "") -> str:
    """All problems that pydantic found."""
    lines, quotes = [], dict[str, None]()
    for problem in error.errors(include_url=False):
        location = problem["loc"]
        # Behind `split`, which has two forms, pydantic puts the name of the form: no key.
        path = [str(p) for i, p in enumerate(location) if i != 1 or location[0] != "split"]
        key = prefix + ".".join(path) or "configuration"
        if problem["type"] == "unknown_keys":
            allowed = problem["ctx"]["allowed"] + ([] if key != "configuration" else OF_FILES)
            for name in problem["ctx"]["unknown"]:
                key = prefix + ".".join([*path, name])
                now = RENAMED.get(name)
                hint = f" (it is now `{now}`)" if now in allowed or "." in (now or "") else nearest(name, allowed)
                lines.append(f"unknown key `{key}`{hint}; allowed here: {', '.join(allowed)}")
        elif problem["type"] == "missing":
            lines.append(f"missing key `{key}`")
        else:
            hidden = isinstance(problem["input"], dict) or path[-1:] == ["salt"]
            given = "" if hidden else f" (given: {shortened(problem['input'])})"
            said = problem["msg"].removeprefix("Value error, ").replace("Input should", "should")
            expected, _, how = problem["type"].partition("_")
            if expected in WORDS and how in ("type", "parsing", "from_float"):
                said = f"should be {WORDS[expected]}"
            elif how == "pattern_mismatch":
                said = PATTERNS.get(problem["ctx"]["pattern"], said)
            if expected == "string" and isinstance(problem["input"], bool | int | float | date):
                quotes[_as_yaml_reads(problem["input"])] = None
            if path[-1:] == ["[key]"]:  # pydantic names the key before it, which `given` has, too
                key, said = prefix + ".".join(path[:-2]), f"a key of it {said}"
            lines.append(f"`{key}`: {said}{given}")
    return "; ".join([*lines, *quotes])


def _as_yaml_reads(value: Any) -> str:
    """How to write a text that YAML takes for something else."""
    if isinstance(value, bool):
        return 'put it in quotes: without them YAML reads "yes" and "on" as true, "no" and "off" as false'
    return 'put it in quotes: without them YAML reads "01" as the number 1, and a date or 1.0 not as text'


def shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
