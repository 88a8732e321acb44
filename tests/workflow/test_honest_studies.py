"""With the default validation, no answer of an honest client is rejected in any shipped phantom study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fdamed.cli.main import main
from fdamed.config.loader import load
from fdamed.config.study import Config
from fdamed.pipeline.paths import Places

CONFIG = Path(__file__).resolve().parents[2] / "config"
HEALTHCARE = CONFIG / "papers" / "healthcare"
STUDIES = {
    "config": [],
    "chexpert_phantom": ["transfer", "projection", "auxiliary", "beta"],
    "mimic_phantom": ["transfer"],
    "midrc_phantom": ["labels_phantom"],
    "private_phantom": [],
    "papers/unsupervised/scanner_phantom": [],
}
"""Every configuration with a phantom, and the tables and figures that are made with it."""
SMALLER = {
    "phantom": {"patients": 1000, "size": 64},
    "image": {"size": 32},
    "train": {"rounds": 3, "evaluate_every": 3},
    "seeds": [0],
    "advise": False,
}


def smaller(name: str, folder: Path) -> list[Path]:
    """The study's files and one over them that makes it small; every warm-up ends after the first round."""
    paths = [CONFIG / f"{name}.yaml", *(HEALTHCARE / f"{overlay}.yaml" for overlay in STUDIES[name])]
    over: dict[str, Any] = SMALLER | {"results": str(folder / "results"), "data": {"root": str(folder / "raw")}}
    config = load(*paths)
    sizes = {"per_class": 60, "labeled": 150 if name == "midrc_phantom" else 40, "val": 20, "test": 60}
    over["split"] = {key: n for key, n in sizes.items() if isinstance(getattr(config.split, key), int)}
    if config.model.backbone == "resnet18":
        over["model"] = {"width": 0.125}
    warm = {name: run for path in paths for name, run in yaml.safe_load(path.read_text())["runs"].items()}
    over["runs"] = {name: run | {"warmup": 1} for name, run in warm.items() if "warmup" in run}
    (folder / "smaller.yaml").write_text(yaml.safe_dump(over))
    return [*paths, folder / "smaller.yaml"]


def test_every_configuration_with_a_phantom_is_listed() -> None:
    paths = [p for p in CONFIG.rglob("*.yaml") if "phantom" in yaml.safe_load(p.read_text())]
    found = {p.relative_to(CONFIG).with_suffix("").as_posix() for p in paths}
    assert found == set(STUDIES)


def trained(name: str, folder: Path) -> Config:
    """The small study after `federate`, for each of its targets."""
    if name == "private_phantom":
        pytest.importorskip("opacus", reason="the extra `privacy` is not installed")
    paths = smaller(name, folder)
    config, given = load(*paths), ["--config", *map(str, paths)]
    for command in ("phantom", "ingest", "split"):
        assert main([command, *given]) == 0, command
    for client in config.split.clients:
        assert main(["cache", *given, "--client", client, "--workers", "1"]) == 0
    assert main(["leakage", *given]) == 0 and main(["init", *given, "--seed", "0"]) == 0
    runs = [f"{run}/{target}/0" for run in config.expanded_runs() for target in config.split.targets]
    assert main(["federate", *given, "--runs", *runs]) == 0
    return config


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_no_answer_is_rejected_in_a_shipped_phantom_study(name: str, tmp_path: Path) -> None:
    config = trained(name, tmp_path)
    answers = 0
    for run in config.expanded_runs():
        for target in config.split.targets:
            folder = Places.of(config).run(run, target, 0)
            assert (folder / "absences.jsonl").read_text() == "", run
            assert "clipped/" not in (folder / "metrics.jsonl").read_text(), run
            lines = map(json.loads, (folder / "ledger.jsonl").read_text().splitlines())
            answers += sum(line["messages"] for line in lines if line["to"] == "server")
    print(f"{name}: {len(config.expanded_runs())} runs, {answers} fields of answers, none rejected")
    assert answers > 0
