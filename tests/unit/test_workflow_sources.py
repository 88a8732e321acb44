"""The rules name the code that makes their files: Snakemake does not see a changed package by itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

RULES = Path(__file__).parents[2] / "workflow" / "rules"


@pytest.mark.parametrize("rule", ["audit", "attributes", "analyze", "membership", "track", "report_page"])
def test_what_reads_a_finished_study_runs_again_after_any_change_of_the_package(rule: str) -> None:
    text = "\n".join((RULES / file).read_text() for file in ("analyses.smk", "report.smk"))
    blocks = re.split(r"^ *rule ", text, flags=re.MULTILINE)
    found = [b for b in blocks if b.startswith(f"{rule}:")]  # two where small studies have a job for all clients
    assert found and all('source="package"' in block for block in found)
