"""The rules name the code that makes their files: Snakemake does not see a changed package by itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES = ROOT / "workflow" / "rules"


def parts(name: str) -> set[str]:
    """The files and folders whose digest SOURCE[name] is, as far as they are written out."""
    (written,) = re.findall(rf'"{name}": digest_source\((.*?)\),\n', (RULES / "common.smk").read_text(), re.DOTALL)
    return set(re.findall(r'"([^"]+)"', written))


@pytest.mark.parametrize("rule", ["audit", "probe", "membership", "track", "report_page"])
def test_what_reads_a_finished_study_runs_again_after_any_change_of_the_package(rule: str) -> None:
    blocks = re.split(r"^rule ", (RULES / "report.smk").read_text(), flags=re.MULTILINE)
    (block,) = [b for b in blocks if b.startswith(f"{rule}:")]
    assert 'source="package"' in block


def test_scores_and_starting_weights_are_made_again_after_a_change_of_the_code_that_makes_them() -> None:
    assert parts("model") == {"models", "seeds.py", "stages/init.py"}
    assert parts("scores") == {
        *("evaluate", "models", "methods", "train.py", "data/loader.py"),
        *("stages/evaluate.py", "stages/own_models.py"),
    }


def test_every_part_that_is_named_is_there() -> None:
    """A name that is nowhere adds nothing to a digest, silently."""
    named = parts("model") | parts("scores") | parts("classical") | parts("theory")
    assert named and all((ROOT / "fdamed" / part).exists() for part in named)
