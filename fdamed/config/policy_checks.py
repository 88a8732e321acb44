"""A configuration against what its hospitals insist on, as far as that is known before any data is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fdamed.config.privacy import CELL, local_steps
from fdamed.config.runs import Run
from fdamed.config.split import Split
from fdamed.config.study import Config, Recipe
from fdamed.core.disclosure import vague
from fdamed.core.errors import FdamedError

Catalog = Mapping[str, Mapping[str, Any]]
Images = Mapping[str, Mapping[str, int]]
"""Hospital -> split -> how many."""


def check_guards(name: str, run: Run, config: Config, known: Catalog, where: str) -> None:
    """Raise where a run cannot keep what the hospitals insist on."""
    for phase in config.phases(run):
        entry = known[phase.method]
        if config.privacy.secure_aggregation:
            raise _unmasked(name, phase, entry, where)
        _check_noise(name, phase, config, entry, where)
    _check_phases(name, run, config, known, where)
    try:
        check_floor(name, run, config, known, most_images(config), where)
    except FdamedError as error:
        raise FdamedError(error.what, where, f"{error.fix} For now nothing was started.") from None


def _unmasked(name: str, phase: Run, entry: Mapping[str, Any], where: str) -> FdamedError:
    if entry["needs_each"]:
        return FdamedError(
            f"`runs.{name}`: {phase.method} cannot run under privacy.secure_aggregation, which shows the server only "
            f"sums over the hospitals: {entry['needs_each']}",
            where,
            "Choose a method that needs only sums (the table in docs/privacy.md), or drop secure_aggregation.",
        )
    return FdamedError(
        f"`runs.{name}`: {phase.method} needs only sums, and fdamed itself does not mask: every hospital's answer "
        "would reach the server as it is",
        where,
        "Set secure_aggregation to false, and where masks are required run the hospitals behind a network that adds "
        "them (Flower's SecAgg+ for one).",
    )


def _check_noise(name: str, phase: Run, config: Config, entry: Mapping[str, Any], where: str) -> None:
    if config.differential_of(phase) is None:
        return
    model, train = config.model, config.train_of(phase)
    fault = None
    if entry.get("classical") or not entry["noised"]:
        fault = (
            f"the sources of {phase.method} let out more than local training under noise has made",
            f"Leave `differential` out of {name} (docs/privacy.md lists the methods that go with it), or drop the run.",
        )
    elif model.backbone.startswith("resnet") and model.norm == "batch":
        fault = (
            "BatchNorm mixes the images of a batch, so no image has a gradient of its own",
            "Set `model.norm: group`.",
        )
    elif phase.auxiliary:
        fault = (
            "auxiliary heads are trained without noise at home, and steer the gradients that leave",
            "Drop `auxiliary` from this run, or `differential`.",
        )
    elif train.precision != "float32":
        fault = "clipping in bfloat16 is too coarse to prove anything", "Set `train.precision: float32`."
    if fault:
        raise FdamedError(f"`runs.{name}`: differential privacy: {fault[0]}", where, fault[1])


def _check_phases(name: str, run: Run, config: Config, known: Catalog, where: str) -> None:
    second = config.phases(run)[1:]
    if config.differential_of(run) and any(known[phase.method]["asks_sources"] for phase in second):
        raise FdamedError(
            f"`runs.{name}.then`: differential privacy is accounted for in one phase, and {second[0].method} asks the "
            "sources again",
            where,
            "Let a method of the target alone follow, such as finetune_head, or drop `then`.",
        )
    if config.privacy.differential and config.advise:
        raise FdamedError(
            "`advise` asks the sources for gradients without noise, and privacy.differential forbids that",
            where,
            "Set `advise: false`, or give `differential` to single runs.",
        )


def check_floor(
    name: str, run: Run, config: Config, known: Catalog, images: Images, where: str, targets: Sequence[str] = ()
) -> None:
    """Raise where a hospital stays below the floor with at most so many `images`; one not among them is not known."""
    for phase in config.phases(run):
        entry = known[phase.method]
        for target in targets or config.split.targets:
            for client, recipe, n in asked(phase, config, entry, target, images):
                steps = None if entry.get("classical") else local_steps(n, recipe.batch, recipe.epochs)
                refused = config.floor.refusal(client, n, steps)
                if refused:
                    fix = refused.fix if n < config.floor.images else ways_out(name, phase, config, recipe, n)
                    raise FdamedError(f"`runs.{name}`, target {target}: {refused.what}", where, fix)


def ways_out(name: str, phase: Run, config: Config, recipe: Recipe, images: int) -> str:
    """The two lines of a configuration of which either lets so many images make enough steps."""
    one = local_steps(images, recipe.batch, 1)
    side = "target" if recipe == config.train_of(phase).target else "source"
    key = f"runs.{name}.train" if side in (phase.train or {}) else "train"
    epochs = -(-config.floor.steps // one)
    then = f"{vague(images, CELL)} images in batches of {recipe.batch} are then {epochs * one}"
    return (
        f"Write `{key}.{side}.epochs: {epochs}` ({then} steps), or `privacy.smallest_steps: {recipe.epochs * one}` "
        "where that is the hospital's decision (docs/privacy.md)."
    )


def asked(
    phase: Run, config: Config, entry: Mapping[str, Any], target: str, images: Images
) -> list[tuple[str, Recipe, int]]:
    """Hospitals that this phase may ask, with their recipes and their images for training, where these are known."""
    train, out = config.train_of(phase), []
    for client, splits in images.items():
        if not entry["asks_target" if client == target else "asks_sources"]:
            continue
        whole, few = splits["train"] + splits["adapt"], splits["adapt"]
        if client != target or entry["every_target_label"]:
            out.append((client, train.source, whole))
        elif entry["target_labels"]:
            out.append((client, train.target, min(few, phase.labeled or few)))
        else:
            out.append((client, train.target, whole))
    return out


def most_images(config: Config) -> dict[str, dict[str, int]]:
    """The most images that a hospital can have for training, where the cut itself says so.

    Patients are drawn for validation and test one by one, so the shares of these take nothing off for certain.
    """
    cut = config.split
    if not isinstance(cut, Split):
        return {}
    far = 10**9
    whole = far if cut.per_class == "all" else 2 * cut.per_class
    few = min(cut.labeled, whole)
    return {client: {"train": whole - few, "adapt": few} for client in cut.clients}
