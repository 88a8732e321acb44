"""Reads configuration files, merges them and checks everything.

`fdamed schema` generates `config/schema.json` from here. `methods/catalog.json`, generated from the methods' classes,
has their options, so that a configuration can be checked without importing torch.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from fdamed.config.cross_checks import FIX, method_problems
from fdamed.config.error_texts import explain
from fdamed.config.policy_checks import policy_problems
from fdamed.config.runs import NUMBER
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError, nearest

NO_DATA = {"layout": "chexpert", "root": "."}
"""In the place of the data in a study over a network, which every hospital has for itself."""
CATALOG = Path(__file__).parents[1] / "methods" / "catalog.json"


@cache
def catalog() -> dict[str, dict[str, Any]]:
    """Method -> {title, paper, target_labels, options: {name: {type, default}}, wire}; see `fdamed schema`."""
    content: dict[str, dict[str, Any]] = json.loads(CATALOG.read_text(encoding="utf-8"))
    return content


def load(*paths: Path | str, variant: str | None = None) -> Config:
    """Read configuration files, later ones over earlier ones, choose a variant, and check everything."""
    chosen = {} if variant is None else {"variant": variant}
    return parse(merged(*paths) | chosen, where=", ".join(str(p) for p in paths))


def merged(*paths: Path | str) -> dict[str, Any]:
    """The keys of configuration files, later ones over earlier ones, not yet checked."""
    raw: dict[str, Any] = {}
    for path in paths:
        content = read(Path(path))
        for section in (("runs",), ("split", "clients")):
            before, now = _at(raw, section), _at(content, section)
            for name in (name for name, entry in now.items() if entry is None and name not in before):
                what = f"`{'.'.join(section)}.{name}` is empty, and no earlier file has it"
                fix = f"Write `{name}: {{}}` for a run without options, a value for a client, or remove the line."
                raise FdamedError(what, str(path), fix)
        raw = _merge(raw, content)
    return raw


def _at(content: Any, section: tuple[str, ...]) -> dict[Any, Any]:
    """A section of a file, or nothing."""
    for key in section:
        content = content.get(key) if isinstance(content, dict) else None
    return content if isinstance(content, dict) else {}


def parse(raw: dict[str, Any], where: str) -> Config:
    """Check a configuration that is already in memory; `where` names it in messages."""
    raw = _with_variant(raw, where)
    if isinstance(train := raw.get("train"), dict) and train.get("transport") == "network":
        raw = {"data": NO_DATA} | raw
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise FdamedError(explain(error), where, FIX) from None
    policy = (policy_problems(name, run, config, catalog()) for name, run in config.trained_runs().items())
    for what, fix in chain(method_problems(config, catalog()), chain.from_iterable(policy)):
        raise FdamedError(what, where, fix)
    return config


def read(path: Path) -> dict[str, Any]:
    """The keys of one YAML or JSON file, not yet checked."""
    if not path.is_file():
        raise FdamedError("this configuration file does not exist", str(path), "Check the path; config/ has examples.")
    try:
        with path.open(encoding="utf-8") as file:  # not its text: messages of YAML name the file
            content = _Loader(file).get_single_data()
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:
        # Besides its own errors, PyYAML raises those of int(), datetime() and hash() for a malformed value.
        what = f"not readable as YAML: {' '.join(str(error).split())}"
        raise FdamedError(what, str(path), f"{_yaml_hint(error)}Fix the file and try again.") from None
    if not isinstance(content, dict):
        raise FdamedError("a configuration is a mapping of keys", str(path), "Start from a file in config/.")
    return content


def _yaml_hint(error: Exception) -> str:
    """What is probably wrong with a file, where PyYAML speaks of tokens and blocks."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem is None or error.problem_mark is None:
        return ""
    line = error.problem_mark.line + 1
    if "'\\t'" in error.problem:
        return f"Line {line} begins with a tab: indent with spaces. "
    if "expected <block end>" in error.problem or "mapping values are not allowed" in error.problem:
        return (
            f"Indent line {line} like the other keys of its section, and write a colon behind every key, the one above "
            "it too; text with a colon needs quotes. "
        )
    return ""


class _Loader(yaml.SafeLoader):
    """Plain YAML or JSON in which no key of a mapping occurs twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"the key `{key}` occurs twice (mapping in line {node.start_mark.line + 1})")
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes what the loader would take for a number."""


for _side in (_Loader, _Dumper):  # JSON writes 1e-07
    _side.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, list("-+0123456789"))


def dump(content: dict[str, Any]) -> str:
    """A configuration as YAML, which `read` reads as it was."""
    return str(yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = _merge(out[key], value) if both else value
    return out


def _with_variant(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """The configuration with its chosen variants merged in: `variant` is a name of `variants`, or a list of them."""
    out = {key: value for key, value in raw.items() if key not in ("variant", "variants")}
    given, chosen = raw.get("variants"), raw.get("variant")
    variants = {str(k): v for k, v in given.items() if isinstance(v, dict)} if isinstance(given, dict) else {}
    for name in chosen if isinstance(chosen, list) else [] if chosen is None else [chosen]:
        if str(name) not in variants:
            allowed = sorted(variants)
            what = f"unknown variant `{name}`{nearest(str(name), allowed)}; allowed: {', '.join(allowed) or 'none'}"
            raise FdamedError(what, where, "Choose one of them, or remove `variant`; nothing was started.")
        out = _merge(out, variants[str(name)])
    return out


def schema() -> dict[str, Any]:
    """The JSON schema of a configuration file, with each method's options."""
    out: dict[str, Any] = Config.model_json_schema()
    out["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    out["title"] = "fdamed configuration"
    out["properties"] |= {
        "variants": {
            "additionalProperties": {"type": "object"},
            "description": "Name -> keys that differ in this variant, such as one column of a paper's table.",
            "examples": [{"many_clients": {"split": {"n_clients": 50}}}],
            "type": "object",
        },
        "variant": {
            "anyOf": [{"type": "string"}, {"items": {"type": "string"}, "type": "array"}],
            "description": "The variant to use, or several; usually given on the command line.",
            "examples": ["clients_50"],
        },
    }
    known = catalog()
    for name, methods in (("Run", ["", *sorted(known)]), ("Warmup", sorted(known)), ("Then", sorted(known))):
        run = out["$defs"][name]
        run["properties"]["method"]["enum"] = methods
        for key in sorted({key for entry in known.values() for key in entry["options"]} - set(run["properties"])):
            texts: dict[str, list[str]] = {}
            for method, entry in known.items():
                if key in entry["options"]:
                    texts.setdefault(entry["options"][key].get("help", ""), []).append(method)
            shared = len(texts) == 1
            described = "; ".join(text if shared else f"{', '.join(names)}: {text}" for text, names in texts.items())
            run["properties"][key] = {"description": described}
        run["additionalProperties"] = False
    return out
