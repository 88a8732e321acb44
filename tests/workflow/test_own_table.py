"""A study of one's own table: which files its first rule watches."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.workflow.test_whole_study import REPO, snakemake


@pytest.mark.parametrize("absolute", [False, True])
def test_only_the_table_of_the_configuration_is_watched_and_none_beside_it(tmp_path: Path, absolute: bool) -> None:
    content = yaml.safe_load((REPO / "config" / "table.yaml").read_text())
    data = tmp_path / "data"
    content["data"] |= {"root": str(data), "table": str(data / "own.txt") if absolute else "own.txt"}
    config = tmp_path / "own.yaml"
    config.write_text(yaml.safe_dump(content))
    data.mkdir()
    for name in ("own.txt", "another.csv"):
        (data / name).write_text("file\n")
    planned = snakemake(tmp_path, "-n", "results/ours/ingest.json", config=config)
    assert planned.returncode == 0, planned.stderr[-6000:]
    assert f"input: {data / 'own.txt'}\n" in planned.stdout
    assert "another.csv" not in planned.stdout
