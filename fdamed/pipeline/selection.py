"""What a study consists of: its runs with target and seed, the batches they train in, and the files of its analyses."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdamed.config.datasets import Benchmark
from fdamed.config.loader import catalog
from fdamed.config.runs import Run, candidates, tuned_to
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import read_json
from fdamed.pipeline.paths import Places

if TYPE_CHECKING:
    from fdamed.federation.method import Method


def check_known(what: str, value: Any, known: Iterable[Any]) -> None:
    """Refuse a client, target, run or seed that the configuration does not have."""
    known = list(known)
    if value not in known:
        fix = f"Choose one of: {', '.join(map(str, known))}."
        raise FdamedError(f"the configuration has no {what} {value!r}", "command line", fix)


@dataclass(frozen=True)
class StudyRun:
    """One run of a study, or a candidate of a tuned one, for one target and seed."""

    config: Config
    name: str
    target: str
    seed: int
    spec: Run
    """Of a tuned run: with the values that were chosen, as soon as they are."""
    candidate_of: str = ""
    """The tuned run, of a candidate: the test part is read only if it is chosen, and then as that run's."""

    @classmethod
    def of(cls, config: Config, name: str, target: str, seed: int) -> StudyRun:
        """The run, if the study has it."""
        runs = config.expanded_runs()
        check_known("run", name, runs)
        check_known("target", target, config.split.targets)
        check_known("seed", seed, config.seeds)
        return cls(config, name, target, seed, _as_trained(config, name, target, seed, runs[name]))

    @classmethod
    def federated(cls, config: Config, name: str, target: str, seed: int) -> StudyRun:
        """The run, if clients train in it; classical runs are fitted and scored by `fdamed fit-classical`."""
        run = cls.of(config, name, target, seed)
        if run.classical:
            what = f"{run.spec.method} is a classical method"
            raise FdamedError(what, f"runs.{name}", "Use `fdamed fit-classical`.")
        return run

    @classmethod
    def trained(cls, config: Config, name: str, target: str, seed: int) -> StudyRun:
        """The run if clients train it: a federated one that is not tuned, or a candidate."""
        for one in all_candidates(config):
            if (one.name, one.target, one.seed) == (name, target, seed):
                return one
        run, written = cls.federated(config, name, target, seed), config.expanded_runs()[name]
        if written.tune:
            fix = f"Train its candidates ({', '.join(candidates(name, written))}), then run `fdamed choose`."
            raise FdamedError(f"{name} is tuned: one of its candidates becomes the run", f"runs.{name}.tune", fix)
        return run

    @property
    def classical(self) -> bool:
        return is_classical(self.spec)

    @property
    def places(self) -> Places:
        return Places.of(self.config)

    @property
    def key(self) -> str:
        return f"{self.name}/{self.target}/{self.seed}"

    @property
    def folder(self) -> Path:
        return self.places.run(self.name, self.target, self.seed)

    def own_model(self, client: str) -> Path:
        """The file with a client's own model, which stays there."""
        return self.places.client(client) / "models" / self.name / self.target / f"{self.seed}.safetensors"

    def rounds(self) -> Path:
        """The scores of every round, which stay with the target."""
        return self.places.client(self.target) / "rounds" / self.name / self.target / f"{self.seed}.jsonl"

    def scores(self, client: str) -> Path:
        return self.places.client(client) / "scores" / self.name / self.target / f"{self.seed}.json"

    def validation_scores(self, client: str) -> Path:
        """The scores of a tuned run's candidates on a client's validation part."""
        return self.places.client(client) / "tuning" / self.name / self.target / f"{self.seed}.json"

    def predictions(self, client: str) -> Path:
        return self.places.client(client) / "predictions" / self.name / self.target / f"{self.seed}.parquet"

    def facts(self) -> dict[str, Any]:
        """What run.json says about every run."""
        config, spec = self.config, self.spec
        return {
            "study": config.study,
            "run": self.name,
            "method": spec.method,
            "auxiliary": spec.auxiliary.model_dump(mode="json") if spec.auxiliary else None,
            "labeled": spec.labeled or config.split.labeled,
            "target": self.target,
            "sources": sorted(client for client in config.split.clients if client != self.target),
            "seed": self.seed,
            "noise": config.noise_of(spec),
            "slurm_job": os.environ.get("SLURM_JOB_ID"),
        }

    @property
    def method(self) -> Method[Any]:
        """The method of the last phase, which makes the run's model."""
        from fdamed.pipeline.phases import phases

        return phases(self.config, self.spec)[-1].method


def _as_trained(config: Config, name: str, target: str, seed: int, run: Run) -> Run:
    """The run; a tuned one with the values in its run.json."""
    file = Places.of(config).run(name, target, seed) / "run.json"
    return config.as_trained(name, read_json(file).get("tuned")) if run.tune and file.is_file() else run


def all_runs(config: Config) -> Iterator[StudyRun]:
    """Every run, target and seed of the study; a tuned run once."""
    for (name, run), target, seed in product(config.expanded_runs().items(), config.split.targets, config.seeds):
        yield StudyRun(config, name, target, seed, _as_trained(config, name, target, seed, run))


def all_candidates(config: Config) -> Iterator[StudyRun]:
    """Every candidate of the tuned runs, with target and seed."""
    for (name, run), target, seed in product(config.expanded_runs().items(), config.split.targets, config.seeds):
        for folder, values in candidates(name, run).items():
            yield StudyRun(config, folder, target, seed, tuned_to(run, values), candidate_of=name)


def is_classical(spec: Run) -> bool:
    """Whether the method is fitted once on pooled features, instead of trained by the clients."""
    return bool(catalog()[spec.method].get("classical"))


def federated_runs(config: Config) -> list[str]:
    """The runs that end with a model, in the order of the configuration."""
    return [name for name, spec in config.expanded_runs().items() if not is_classical(spec)]


def trained_by_clients(config: Config) -> list[str]:
    """The runs that clients train, candidates in the place of a tuned one."""
    return [name for name, spec in config.trained_runs().items() if not is_classical(spec)]


def batches(config: Config) -> list[list[str]]:
    """What clients train, `batch_runs` at a time: a run added at the end changes only the last batch."""
    names, size = trained_by_clients(config), config.batch_runs
    return [names[start : start + size] for start in range(0, len(names), size)]


def analysis_files(config: Config) -> dict[str, list[Path]]:
    """Command -> the files that it writes of a study, for the analyses that the configuration asks for."""
    root, trained = Places.of(config).root, bool(federated_runs(config))
    patients = not isinstance(config.data, Benchmark)  # public sets have none whose membership could be inferred
    folders = {
        "advise": ("advice", config.split.targets if config.advise and config.train.transport != "network" else ()),
        "audit": ("audit", config.split.targets),
        "attributes": ("attributes", config.split.targets if config.audit.attributes and trained else ()),
        "membership": ("membership", config.split.clients if config.audit.membership and trained and patients else ()),
    }
    return {step: [root / name / f"{p}.json" for p in clients] for step, (name, clients) in folders.items() if clients}
