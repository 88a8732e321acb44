"""One finished run of a study, found by its folder or by its names, with its own configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdamed.config import Config
from fdamed.configfile import catalogue
from fdamed.errors import FdamedError
from fdamed.files import digest, read_json
from fdamed.records import Record, read
from fdamed.runs import Run
from fdamed.stages.places import Places

if TYPE_CHECKING:
    from fdamed.federation.method import Method


@dataclass(frozen=True)
class Chosen:
    """One finished run of a study, and what predicts in it where it is not the bare network."""

    config: Config
    record: Record
    spec: Run
    folder: Path
    method: Method[Any] | None

    @property
    def places(self) -> Places:
        return Places.of(self.config)


def by_folder(folder: Path) -> Chosen:
    """The run of a folder, with the configuration under which it was trained, as the workflow kept it."""
    folder = folder.resolve()
    fix = "Give results/COHORT/runs/RUN/TARGET/SEED of a finished run, or --config, --run, --target and --seed."
    if len(folder.parts) < 6 or folder.parts[-4] != "runs" or not folder.is_dir():
        raise FdamedError("this is not the folder of a run", str(folder), fix)
    if not (folder / "run.json").is_file():
        raise FdamedError("this run is not finished", str(folder), "Run `snakemake --cores 2`, or `fdamed federate`.")
    root = folder.parents[3]
    kept = sorted((root / "parties").glob("config.*.json"), key=lambda p: -p.stat().st_mtime)
    facts = read_json(folder / "run.json")
    for path in kept:
        config = _moved(path, root)
        if (
            config
            and facts["run"] in config.expanded_runs()
            and _settings(config, facts) == facts["digests"]["settings"]
        ):
            return of_study(config, facts["run"], facts["target"], int(facts["seed"]))
    raise FdamedError("the configuration of this run is not in its study", str(root / "parties"), fix)


def _moved(path: Path, root: Path) -> Config | None:
    """A kept configuration with `results` where the study lies now; None: it is one of another version."""
    from fdamed.configfile import parse

    try:
        return parse(read_json(path) | {"results": str(root.parent), "cohort": root.name}, str(path))
    except (FdamedError, ValueError):
        return None


def of_study(config: Config, name: str, target: str, seed: int) -> Chosen:
    from fdamed.stages.federate import chosen
    from fdamed.stages.phases import phases

    spec = chosen(config, name, target, seed)
    if catalogue()[spec.method].get("classical"):
        fix = "Export a run of hospitals that train; `fdamed methods` lists them."
        what = f"{spec.method} has no model: it aligns the features of this study's images and classifies those alone"
        raise FdamedError(what, f"runs.{name}", fix)
    folder = Places.of(config).run(name, target, seed)
    record = read(folder)
    if record is None:
        raise FdamedError("this run is not finished", str(folder), "Run `snakemake --cores 2`, or `fdamed federate`.")
    if _settings(config, record.facts) != record.facts["digests"]["settings"]:
        fix = "Give the configuration of the run, or the run's folder alone."
        raise FdamedError("the run was trained with other settings than this configuration has", str(folder), fix)
    method = phases(config, spec)[-1].method
    return Chosen(config, record, spec, folder, method if method.keeps or method.parts else None)


def _settings(config: Config, facts: dict[str, Any]) -> str:
    """What run.json has as the digest of the run's settings, for this configuration."""
    spec = config.expanded_runs()[facts["run"]]
    return digest([part.model_dump(mode="json") for part in (config.model, config.train, spec)])
