"""One finished run of a study, found by its folder or by its names, with the configuration it was trained with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fdamed.config.base import digest_sections
from fdamed.config.loader import parse
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import read_json
from fdamed.core.run_record import Record, read
from fdamed.federation.method import Method
from fdamed.pipeline.fingerprint import digest_images
from fdamed.pipeline.paths import LAST, Places
from fdamed.pipeline.scoring import tensors_of
from fdamed.pipeline.selection import StudyRun

UNFINISHED = "this run is not finished"
TRAIN = "Run `snakemake --cores 2`, or `fdamed federate`."


@dataclass(frozen=True)
class Chosen:
    """One finished run of a study; `method` if its model is more than the bare network."""

    run: StudyRun
    record: Record
    method: Method[Any] | None

    @property
    def config(self) -> Config:
        return self.run.config

    @property
    def places(self) -> Places:
        return self.run.places

    @property
    def keeps(self) -> bool:
        """Whether the model is the target's own and stayed there."""
        return self.method is not None and bool(self.method.keeps)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the model: the run's weights, or the target's own."""
        return tensors_of(self.run, self.run.target)


def by_folder(folder: Path) -> Chosen:
    """The run of a folder, with the configuration under which it was trained, as the workflow kept it."""
    folder = folder.resolve()
    fix = "Give results/STUDY/runs/RUN/TARGET/SEED of a finished run, or --config, --run, --target and --seed."
    if len(folder.parts) < 6 or folder.parts[-4] != "runs" or not folder.is_dir():
        raise FdamedError("this is not the folder of a run", str(folder), fix)
    if not (folder / "run.json").is_file():
        raise FdamedError(UNFINISHED, str(folder), TRAIN)
    root, facts = folder.parents[3], read_json(folder / "run.json")
    paths = sorted((root / "clients").glob("config.*.json"))
    kept = {path.name: config for path in paths if (config := _moved(path, root))}
    for config in kept.values():
        if facts["run"] in config.expanded_runs() and not _differs(config, facts):
            shown = _shown_as(config, _last(root, kept))
            return of_study(shown, facts["run"], facts["target"], int(facts["seed"]))
    raise FdamedError("the configuration of this run was not found in its study", str(root / "clients"), fix)


def _last(root: Path, kept: Mapping[str, Config]) -> Config:
    """The configuration with which the study was last run; if that is not known, the strictest about small counts."""
    path = root / "clients" / LAST
    name = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    return kept.get(name) or max(kept.values(), key=lambda config: config.smallest_cell)


def _shown_as(config: Config, last: Config) -> Config:
    """The configuration of a run, with what the views of the study show: one that was public once need not stay so."""
    views = {key: getattr(last.privacy, key) for key in ("smallest_cell", "public")}
    return config.model_copy(update={"privacy": config.privacy.model_copy(update=views)})


def _moved(path: Path, root: Path) -> Config | None:
    """A stored configuration with `results` set to the current folder; None: it is of another version."""
    try:
        return parse(read_json(path) | {"results": str(root.parent), "study": root.name}, str(path))
    except (FdamedError, ValueError):
        return None


def of_study(config: Config, name: str, target: str, seed: int) -> Chosen:
    """The run with these names, if it is finished, has a model and was trained with this configuration."""
    run = StudyRun.of(config, name, target, seed)
    if run.classical:
        fix = "Export a federated run; `fdamed methods` lists the methods."
        what = f"{run.spec.method} has no model: it classifies only the features of this study's images"
        raise FdamedError(what, f"runs.{name}", fix)
    record = read(run.folder, config.smallest_cell)
    if record is None:
        raise FdamedError(UNFINISHED, str(run.folder), TRAIN)
    differs = _differs(config, record.facts)
    if differs:
        fix = "Give the configuration of the run, or the run's folder alone."
        raise FdamedError(f"the run was trained with other {differs} than this configuration has", str(run.folder), fix)
    return Chosen(run, record, run.method if run.method.keeps or run.method.parts else None)


def _differs(config: Config, facts: dict[str, Any]) -> str:
    """What in this configuration differs from the run's run.json; empty: nothing."""
    spec, known = config.as_trained(facts["run"], facts.get("tuned")), facts["digests"]
    if digest_sections(config.model, config.train, spec) != known["settings"]:
        return "settings"
    return "" if known.get("images") == digest_images(config) else "images or labels (`image`, `split` or `data`)"
