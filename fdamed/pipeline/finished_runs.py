"""One finished run of a study, found by its folder or by its names, with the configuration it was trained with."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdamed.config.base import digest_sections
from fdamed.config.runs import Run
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import read_json
from fdamed.core.run_record import Record, read
from fdamed.pipeline.paths import Places, needed, tensors_in
from fdamed.pipeline.scoring import incomplete_model
from fdamed.pipeline.selection import StudyRun, is_classical

if TYPE_CHECKING:
    from torch import Tensor

    from fdamed.federation.method import Method

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Chosen:
    """One finished run of a study; `method` if its model is more than the bare network."""

    config: Config
    record: Record
    spec: Run
    folder: Path
    method: Method[Any] | None

    @property
    def places(self) -> Places:
        return Places.of(self.config)

    @property
    def keeps(self) -> bool:
        """Whether the model is the target's own and stayed there."""
        return self.method is not None and bool(self.method.keeps)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the model: the run's weights, or what the target keeps of its own."""
        from fdamed.federation.client_state import read_state
        from fdamed.pipeline.personalized_models import own_path

        record = self.record
        if self.method is None or not self.keeps:
            return tensors_in(self.folder / "theta.safetensors", "federate")
        path = needed(own_path(self.places, record.target, record.run, record.target, record.seed), "federate")
        kept = read_state(path)
        if not all(name in kept for name in self.method.keeps):
            raise incomplete_model(record.target, str(path))
        return kept


def by_folder(folder: Path) -> Chosen:
    """The run of a folder, with the configuration under which it was trained, as the workflow kept it."""
    folder = folder.resolve()
    fix = "Give results/STUDY/runs/RUN/TARGET/SEED of a finished run, or --config, --run, --target and --seed."
    if len(folder.parts) < 6 or folder.parts[-4] != "runs" or not folder.is_dir():
        raise FdamedError("this is not the folder of a run", str(folder), fix)
    if not (folder / "run.json").is_file():
        raise FdamedError("this run is not finished", str(folder), "Run `snakemake --cores 2`, or `fdamed federate`.")
    root = folder.parents[3]
    kept = sorted((root / "clients").glob("config.*.json"), key=lambda p: -p.stat().st_mtime)
    facts = read_json(folder / "run.json")
    if "images" not in facts["digests"] and "settings" in facts["digests"]:
        what = "the run was trained by an older fdamed and does not record how its images and labels were made"
        fix = "Name its configuration yourself: --config, --run, --target and --seed."
        raise FdamedError(what, str(folder), fix)
    for path in kept:
        config = _moved(path, root)
        if config and facts["run"] in config.expanded_runs() and not _differs(config, facts):
            return of_study(config, facts["run"], facts["target"], int(facts["seed"]))
    raise FdamedError("the configuration of this run was not found in its study", str(root / "clients"), fix)


def _moved(path: Path, root: Path) -> Config | None:
    """A stored configuration with `results` set to the current folder; None: it is of another version."""
    from fdamed.config.loader import parse

    try:
        return parse(read_json(path) | {"results": str(root.parent), "study": root.name}, str(path))
    except (FdamedError, ValueError):
        return None


def of_study(config: Config, name: str, target: str, seed: int) -> Chosen:
    from fdamed.pipeline.phases import phases

    spec = StudyRun.of(config, name, target, seed).spec
    if is_classical(spec):
        fix = "Export a federated run; `fdamed methods` lists the methods."
        what = f"{spec.method} has no model: it aligns the features of this study's images and classifies those alone"
        raise FdamedError(what, f"runs.{name}", fix)
    folder = Places.of(config).run(name, target, seed)
    record = read(folder)
    if record is None:
        raise FdamedError("this run is not finished", str(folder), "Run `snakemake --cores 2`, or `fdamed federate`.")
    differs = _differs(config, record.facts)
    if differs:
        fix = "Give the configuration of the run, or the run's folder alone."
        raise FdamedError(f"the run was trained with other {differs} than this configuration has", str(folder), fix)
    if "images" not in record.facts["digests"]:
        log.warning(f"{name}/{target}/{seed} is of an older fdamed; its `image`, `split` and `data` cannot be checked")
    method = phases(config, spec)[-1].method
    return Chosen(config, record, spec, folder, method if method.keeps or method.parts else None)


def _differs(config: Config, facts: dict[str, Any]) -> str:
    """What in this configuration differs from the run's run.json; empty: nothing."""
    from fdamed.pipeline.fingerprint import digest_images

    spec, known = config.expanded_runs()[facts["run"]], facts["digests"]
    if digest_sections(config.model, config.train, spec) != known["settings"]:
        return "settings"
    if known.get("images", here := digest_images(config)) != here:
        return "images or labels (`image`, `split` or `data`)"
    return ""
