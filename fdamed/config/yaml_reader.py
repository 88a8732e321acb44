"""YAML and JSON as plain data: no objects, no key twice, and no file that unfolds into more than it is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

LARGEST = 8 << 20
"""Bytes of a configuration; one with a thousand hospitals has a tenth of it."""
UNFOLDED = 200_000
"""Values after every alias is written out: nine lines of aliases can stand for a billion."""


class NotPlain(ValueError):
    """A file that is not plain data; the text says why in one line."""


def read(path: Path) -> Any:
    """The content of a .json file, or of a YAML file of any other name."""
    if path.stat().st_size > LARGEST:
        raise NotPlain(f"larger than {LARGEST >> 20} MB")
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            return json.loads(text, object_pairs_hook=_once)
        return _yaml(text)
    except (yaml.YAMLError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise NotPlain(" ".join(str(error).split())) from None
    except NotPlain:
        raise
    except RecursionError:
        raise NotPlain("nested too deeply") from None
    except (ValueError, TypeError, OverflowError) as error:
        # PyYAML lets through what int(), datetime() and hash() say of a value that looks like one of theirs.
        raise NotPlain(f"a value cannot be read: {' '.join(str(error).split())}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _no_key_twice(key for key, _ in pairs)
    return dict(pairs)


def _no_key_twice(keys: Iterable[str], where: str = "") -> None:
    twice = [key for key, n in Counter(keys).items() if n > 1]
    if twice:
        raise NotPlain(f"the key `{twice[0]}` stands there twice{where}")


def _yaml(text: str) -> Any:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _unfolded(node, {})
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _unfolded(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values a node stands for, aliases written out; 0 in `known` marks those that are being looked at."""
    if id(node) in known:
        if not known[id(node)]:
            raise NotPlain("an alias contains itself")
        return known[id(node)]
    known[id(node)] = 0
    size = 1
    if isinstance(node, yaml.MappingNode):
        keys = (k.value for k, _ in node.value if isinstance(k, yaml.ScalarNode))
        _no_key_twice(keys, f" (line {node.start_mark.line + 1} and on)")
        size += sum(_unfolded(k, known) + _unfolded(v, known) for k, v in node.value)
    elif isinstance(node, yaml.SequenceNode):
        size += sum(_unfolded(v, known) for v in node.value)
    if size > UNFOLDED:
        raise NotPlain(f"its aliases stand for more than {UNFOLDED:,} values")
    known[id(node)] = size
    return size
