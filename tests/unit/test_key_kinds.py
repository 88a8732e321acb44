"""Every key of the configuration decides the data, the training or the views, and a view key never trains again."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fdamed.config.base import without_defaults
from fdamed.config.key_kinds import DATA, KINDS, SPEED, TRAINING, VIEW, kind_of, without_views
from fdamed.config.loader import load, schema
from fdamed.config.study import Config
from fdamed.core.files import digest

ROOT = Path(__file__).parents[2]
RULES = ROOT / "workflow" / "rules"
SETTINGS = re.compile(r"(?<!def )\bsettings\(\s*((?:\"\w+\",?\s*)+)(?:source=\"(\w+)\",?\s*)?\)")
OF_A_RUN = re.compile(r"sections = \(([^)]*)\)")
BY_FILES = {"study", "results", "seeds", "batch_runs", "runs"}
"""They decide which files there are; no digest of a section needs them."""


def keys(part: dict[str, Any], definitions: dict[str, Any], above: str = "") -> Iterator[str]:
    """The paths of all keys below a part of the schema; a name that the user chooses is `any`."""
    for branch in [part, *part.get("anyOf", ()), *part.get("oneOf", ()), *part.get("allOf", ())]:
        if "$ref" in branch:
            yield from keys(definitions[branch["$ref"].rpartition("/")[2]], definitions, above)
        for name, inner in branch.get("properties", {}).items():
            yield f"{above}{name}"
            yield from keys(inner, definitions, f"{above}{name}.")
        for named in (branch.get("additionalProperties"), *branch.get("patternProperties", {}).values()):
            if isinstance(named, dict):
                yield from keys(named, definitions, f"{above}any.")


WHOLE = schema()
EVERY = sorted(set(keys(WHOLE, WHOLE["$defs"])) - {"variant", "variants"})


def rules() -> list[tuple[str, tuple[str, ...], str]]:
    """File, sections and source of every digest of settings in the workflow."""
    found = []
    for path in sorted(RULES.glob("*.smk")):
        for sections, source in SETTINGS.findall(path.read_text()):
            found.append((path.stem, tuple(re.findall(r"\w+", sections)), source))
    of_a_run = OF_A_RUN.search((RULES / "common.smk").read_text())
    assert of_a_run
    return [*found, ("a run", tuple(re.findall(r"\w+", of_a_run[1])), "")]


def digests(sections: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What the jobs of data and training, and those of the views, depend on; as common.smk has it."""
    lasting = without_views(sections)
    views = [digest([sections.get(s) for s in names]) for _, names, source in rules() if source == "package"]
    return [digest([lasting.get(s) for s in names]) for _, names, source in rules() if source != "package"], views


def changed(sections: dict[str, Any], path: str) -> dict[str, Any]:
    out = copy.deepcopy(sections)
    *above, last = path.split(".")
    here = out
    for name in above:
        here[name] = here[name] if isinstance(here.get(name), dict) else {}
        here = here[name]
    here[last] = "another value"
    return out


def test_the_schema_is_walked_to_its_leaves() -> None:
    assert {"privacy.smallest_cell", "train.source.lr", "runs.any.train", "data.root", "audit.images"} <= set(EVERY)
    assert len(EVERY) > 100 and len(rules()) > 12


DEMO = without_defaults(load(ROOT / "config" / "config.yaml"))
BARE = {key: value for key, value in DEMO.items() if key in ("study", "data", "split", "runs")}
"""Nothing but what a configuration must have: a key of a section that is not there yet."""


@pytest.mark.parametrize("sections", [DEMO, BARE], ids=["demo", "bare"])
@pytest.mark.parametrize("path", EVERY)
def test_a_key_reaches_what_its_kind_says_and_nothing_else(path: str, sections: dict[str, Any]) -> None:
    jobs, views = digests(sections)
    jobs_after, views_after = digests(changed(sections, path))
    if kind_of(path) == VIEW:
        assert jobs_after == jobs, "a setting of the views would train again"
        assert views_after != views, "no view would be made again"
    elif kind_of(path) == SPEED:
        assert (jobs_after, views_after) == (jobs, views), "no file depends on it"
    elif path.split(".")[0] not in BY_FILES:
        assert jobs_after != jobs, "the files would stay as they were"


def test_every_section_has_a_kind_and_no_kind_is_of_a_key_that_is_gone() -> None:
    assert set(KINDS.values()) == {DATA, TRAINING, VIEW, SPEED}
    assert set(Config.model_fields) <= set(KINDS) and set(KINDS) <= set(EVERY)


def test_the_smallest_cell_alone_is_taken_out_of_the_privacy_policy() -> None:
    assert without_views({"privacy": {"smallest_cell": 5, "release": []}, "audit": {"images": 100}, "seeds": [1]}) == {
        "privacy": {"release": []},
        "seeds": [1],
    }
