"""Every configuration in config/ trains: each of its runs for one round of each phase, on a few small images.

Overlays are laid over the studies that their own first lines name. A run that another variant of the same file has
already trained is not trained again.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from fdamed.cli.commands import federate
from fdamed.cli.main import main
from fdamed.config import loader
from fdamed.config.study import Config
from fdamed.pipeline.paths import Places
from fdamed.pipeline.selection import StudyRun
from tests.support.small_studies import smaller, write_clients

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "config").rglob("*.yaml"))
COMMAND = re.compile(r"--configfile (config/\S+\.yaml)(?: (config/\S+\.yaml))?(?:.*variant=(\w+))?")
Case = tuple[str, str]
"""The study's file, and the overlay or nothing; both below config/."""


def short(path: str) -> str:
    return path.removeprefix("config/")


def commands(path: Path) -> list[tuple[str, str, str]]:
    """(study, overlay, variant) of the commands in a file's comments."""
    return [tuple(map(short, found)) for found in COMMAND.findall(path.read_text(encoding="utf-8"))]  # type: ignore[misc]


def cases() -> list[Case]:
    studies = [(str(p.relative_to(ROOT / "config")), "") for p in SHIPPED if "data" in loader.read(p)]
    overlays = [(study, over) for p in SHIPPED for study, over, _ in commands(p) if over]
    return studies + list(dict.fromkeys(overlays))


def raw_of(study: str, overlay: str, variant: str) -> dict[str, Any]:
    """The merged keys, after the loader has checked them."""
    paths = [ROOT / "config" / name for name in (study, overlay) if name]
    loader.load(*paths, variant=variant or None)
    raw: dict[str, Any] = {}
    for path in paths:
        raw = merged(raw, loader.read(path))
    return merged(raw, raw.get("variants", {})[variant]) if variant else raw


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = {k: merged(base[k], v) for k, v in over.items() if isinstance(v, dict) and isinstance(base.get(k), dict)}
    return base | over | both


def variants(study: str, overlay: str) -> list[str]:
    """All variants of a study; of an overlay those of its commands."""
    if overlay:
        return sorted({v for s, o, v in commands(ROOT / "config" / overlay) if (s, o) == (study, overlay)})
    return ["", *loader.read(ROOT / "config" / study).get("variants", ())]


def test_every_overlay_names_a_study_and_every_variant_of_an_overlay_a_command() -> None:
    laid = {over for _, over in cases() if over}
    for path in SHIPPED:
        content, name = loader.read(path), str(path.relative_to(ROOT / "config"))
        assert "data" in content or name in laid, f"{name}: no --configfile STUDY {name} in its comments"
        if "data" not in content:
            named = {v for _, over, v in commands(path) if over == name}
            assert set(content.get("variants", ())) <= named


@pytest.mark.parametrize(("study", "overlay"), cases())
def test_every_run_of_a_shipped_configuration_trains_for_a_round(study: str, overlay: str, tmp_path: Path) -> None:
    trained: set[str] = set()
    if overlay:  # the study's own runs have their own test
        base = smaller(raw_of(study, "", ""), tmp_path / "base")
        trained = {key(base, name) for name in base.expanded_runs()}
    for variant in variants(study, overlay):
        config = smaller(raw_of(study, overlay, variant), tmp_path / (variant or "as_it_is"))
        new = [name for name in config.expanded_runs() if key(config, name) not in trained]
        trained |= {key(config, name) for name in new}
        write_clients(config)
        for name in new:
            train(config, name)


def key(config: Config, name: str) -> str:
    """What decides whether a run can train, without the sizes of its clients."""
    run, split = config.expanded_runs()[name], config.split
    phases = {n: (p.method, p.options, p.auxiliary, config.train_of(p)) for n, p in config.phases(run).items()}
    return str((phases, run.labeled, run.noise, config.model, split.by, split.target, config.privacy))


def train(config: Config, name: str) -> None:
    target = config.split.targets[0]
    one = StudyRun.of(config, name, target, 0)
    if one.classical:
        fit_classical(config, name)
        return
    federate.federate(one, 1)
    tensors = load_file(one.folder / "theta.safetensors")
    assert (one.folder / "done").is_file() and all(torch.isfinite(t).all() for t in tensors.values())
    assert len((one.folder / "metrics.jsonl").read_text().splitlines()) >= 1


def fit_classical(config: Config, name: str) -> None:
    path = Places.of(config).root / "config.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_defaults=True)))
    target, spec = config.split.targets[0], config.expanded_runs()[name]
    given = ["--config", str(path), "--target", target, "--seed", "0"]
    backbone = str(spec.options.get("features", "init"))
    if backbone != "init" and not StudyRun.of(config, backbone, target, 0).folder.is_dir():
        train(config, backbone)
    for client in config.split.clients:
        assert main(["features", *given, "--client", client, "--backbone", backbone]) == 0
    assert main(["fit-classical", *given, "--run", name]) == 0
