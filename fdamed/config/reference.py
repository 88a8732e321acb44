"""The keys of a configuration with values, default, meaning and example, from its schema, for people.

`fdamed config` prints them, and the documentation has them as tables.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import yaml

from fdamed.config.loader import catalog

MANY = 10
"""Choices from which on a table does not list them."""
LONG = 100
"""Characters from which on a section's value is shown by its own table only."""
KINDS = {
    "string": "text",
    "number": "number",
    "integer": "whole number",
    "boolean": "`true`, `false`",
    "null": "`null`",
}
SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def sections_of(entry: dict[str, Any]) -> list[str]:
    """The names of the sections that a key may hold."""
    parts = [*entry.get("anyOf", ()), *entry.get("oneOf", ()), *entry.get("patternProperties", {}).values()]
    parts += [inner] if isinstance(inner := entry.get("additionalProperties"), dict) else []
    own = [entry["$ref"].rpartition("/")[2]] if "$ref" in entry else []
    return own + [section for part in parts for section in sections_of(part)]


def own_keys(keys: dict[str, Any]) -> dict[str, Any]:
    """The keys of a section; a run's also include all options of all methods, which have their own pages."""
    if "method" not in keys:
        return keys
    options = {name for method in catalog().values() for name in method["options"]} - {"noise"}
    return {name: keys[name] for name in itertools.takewhile(lambda name: name not in options, keys)}


def examples(schema: dict[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
    """Section -> key -> the first value that a configuration in the folder gives it, unless it is empty."""
    known = schema["$defs"]
    out: dict[str, dict[str, Any]] = {name: {} for name in ("", *known)}

    def visit(section: str, content: Any) -> None:
        keys = (known[section] if section else schema)["properties"]
        for key, value in content.items() if isinstance(content, dict) else ():
            if key in keys and value not in (None, [], {}):
                out[section].setdefault(key, value)
            for inner in sections_of(keys.get(key, {})):
                many = "patternProperties" in keys[key]
                for part in value.values() if many else [value] if fits(known[inner], value) else ():
                    visit(inner, part)

    for path in sorted(folder.rglob("*.yaml")):
        visit("", SafeLoader(path.read_text(encoding="utf-8")).get_single_data())
    return out


def fits(section: dict[str, Any], content: Any) -> bool:
    """Whether a value is one of this section: all of its keys, and the layout, are known there."""
    keys = section["properties"]
    known = isinstance(content, dict) and content.keys() <= keys.keys()
    return known and keys.get("layout", {}).get("const") in (None, content.get("layout"))


def meaning(entry: dict[str, Any]) -> str:
    """The description; of a key that has none, that of the section that it holds."""
    text = entry.get("description") or ("Chooses this section." if "const" in entry else "")
    return " ".join(text.split()) or ("See below." if sections_of(entry) else "")


def allowed(entry: dict[str, Any]) -> str:
    """The type of a value with its limits, or the choices."""
    if "const" in entry:
        return code(entry["const"])
    if "enum" in entry:
        return ", ".join(map(code, entry["enum"])) if len(entry["enum"]) < MANY else "one of the methods"
    if options := entry.get("anyOf") or entry.get("oneOf"):
        return " or ".join(dict.fromkeys(allowed(option) for option in options))
    if "patternProperties" in entry:
        return f"name -> {' or '.join(map(allowed, entry['patternProperties'].values()))}"
    if "$ref" in entry:
        return "section"
    if entry.get("type") == "array":
        return f"list: {allowed(entry.get('items', {}))}" if "items" in entry else "list"
    if entry.get("type") == "object":
        inner = entry.get("additionalProperties")
        return f"mapping: {allowed(inner)}" if isinstance(inner, dict) and inner else "mapping"
    limits = [f"{sign} {entry[name]:g}" for name, sign in LIMITS.items() if name in entry]
    return " ".join([KINDS.get(entry.get("type", ""), "any value"), *limits])


def example_of(name: str, entry: dict[str, Any], found: dict[str, Any]) -> str:
    """`key: value` of the schema, of a shipped configuration or of the default; long mappings are cut."""
    usual = found.get(name, entry.get("const", entry.get("default")))
    value = entry["examples"][0] if "examples" in entry else usual
    if value in (None, [], {}):
        return "see below" if sections_of(entry) else ""
    text = as_yaml(name, value)
    if len(text) > LONG and isinstance(value, dict):
        text = as_yaml(name, dict(list(value.items())[:2]))
    return f"`{text}`"


def as_yaml(name: str, value: Any) -> str:
    return yaml.safe_dump({name: value}, default_flow_style=True, sort_keys=False, width=10**6).strip()[1:-1]


def code(value: Any) -> str:
    return f"`{json.dumps(value)}`"
