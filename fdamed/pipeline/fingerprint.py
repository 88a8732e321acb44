"""What decides the numbers of a run: settings, data, initial weights, versions and the code it depends on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from fdamed import __version__
from fdamed.config.base import digest_sections, without_defaults
from fdamed.config.loader import catalog as known_methods
from fdamed.config.runs import Run
from fdamed.config.study import Config
from fdamed.core.files import digest, digest_file
from fdamed.core.provenance import PACKAGE, digest_code
from fdamed.pipeline.hospitals.facts import fact_of
from fdamed.pipeline.selection import StudyRun

if TYPE_CHECKING:
    from fdamed.federation.client import Step

CORE = "fdamed.pipeline.phases"
DECIDES_DATA = ("fdamed.config.split", "fdamed.config.datasets")
"""They decide the data, which have digests of their own."""
SHARED = "_shared"


def training_code(spec: Run, catalog: Mapping[str, Mapping[str, Any]]) -> str:
    """Twelve hex digits that change when, and only when, code changes that can change this run's numbers."""
    own = {catalog[phase.method]["module"] for phase in (spec, spec.warmup, spec.then) if phase}
    kept = {SHARED, *(_room(module) for module in own)}
    rooms = {p.stem for p in (PACKAGE / "methods").iterdir()} - kept
    return digest_code(CORE, *sorted(own), without=(*DECIDES_DATA, *(f"fdamed.methods.{room}" for room in rooms)))


def _room(module: str) -> str:
    """The file or package of a method: fdamed.methods.fada.method -> fada."""
    return module.split(".")[2]


def fingerprint(run: StudyRun, threads: int, here: bool = True) -> dict[str, Any]:
    """What must be the same when a run resumes from a checkpoint; `here`: its clients train on this machine."""
    from fdamed.pipeline.devices import without_gpu

    config, spec, places = run.config, run.spec, run.places
    wanted = config.differential_of(spec)
    private: dict[str, Any] = {"differential": without_defaults(wanted)} if wanted else {}
    private |= {"secure_aggregation": True} if config.privacy.secure_aggregation else {}
    data = {p: fact_of(config, p, "data") for p in sorted(config.split.clients)}
    return {
        "settings": digest_sections(config.model, config.train, spec),
        "run": run.key,
        "noise": config.noise_of(spec),
        "data": digest(data),
        "init": digest_file(places.init(run.seed) / "theta.safetensors"),
        "source": training_code(spec, known_methods()),
        **machine(config if here else without_gpu(config), threads, config.train_of(spec).precision),
        **private,
    }


def machine(config: Config, threads: int, precision: str) -> dict[str, Any]:
    """What decides the bits of a training on this machine: versions, processor, threads, GPU."""
    import torch

    from fdamed.pipeline.devices import facts

    return {
        "threads": threads,
        "torch": torch.__version__,
        "fdamed": __version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        **facts(config, precision),
    }


@cache
def step_code(step: Step) -> str:
    """Twelve hex digits of the code that can change the answers to a step: its own, and what it imports."""
    return digest_code(step.run.__module__, "fdamed.models", without=DECIDES_DATA)


def digest_images(config: Config) -> str:
    """Digest of the settings that decide pixels and labels; not of paths, nor of the salt."""
    places = {"root", "salt", "reject_share", "allowed_roots", "demographics", "mimic_iv", "table"}
    data = without_defaults(config.data, exclude=places)
    for domain in data.get("domains", {}).values():
        domain.pop("root", None)
    return digest([without_defaults(config.image), without_defaults(config.split), data])
