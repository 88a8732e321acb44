"""Checks of runs against the privacy policy, as far as possible before any data is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fdamed.config.cross_checks import Catalog, Problems
from fdamed.config.privacy import CELL, FOLDS, Minimum, epoch_steps, local_steps
from fdamed.config.runs import Run
from fdamed.config.split import Split
from fdamed.config.study import Config, Recipe
from fdamed.core.disclosure import vague
from fdamed.core.errors import FdamedError

Images = Mapping[str, Mapping[str, int]]
"""Client -> part (train, adapt, ...) -> number of images."""


def policy_problems(name: str, run: Run, config: Config, known: Catalog) -> Problems:
    """What of a run the privacy policy forbids."""
    for phase in config.phases(run).values():
        for what, fix in _phase_problems(phase, config, known[phase.method]):
            yield f"`runs.{name}`: {what}", fix
    if run.then and config.differential_of(run) and known[run.then.method]["asks_sources"]:
        yield (
            f"`runs.{name}.then`: the privacy budget covers one phase, but {run.then.method} uses the sources again",
            "Use a second phase at the target only, such as finetune_head, or remove `then`.",
        )
    if config.privacy.differential and config.advise:
        yield (
            "`advise` uses gradients of the sources without noise, which privacy.differential forbids",
            "Set `advise: false`, or give `differential` to single runs.",
        )
    if config.privacy.secure_aggregation and config.advise:
        yield (
            "`advise` compares the gradients of single sources, which privacy.secure_aggregation forbids",
            "Set `advise: false`, or secure_aggregation to false.",
        )
    yield from _fold_problems(name, run, config)
    for what, fix in _minimum_problems(name, run, config, known, most_images(config), config.split.targets):
        yield what, f"{fix} Nothing was started."


def _fold_problems(name: str, run: Run, config: Config) -> Problems:
    """Whether a fold that `advise` holds out, or the rest that is trained on, is smaller than the minimum.

    Folds have whole patients: one can still be smaller, and `advise` then skips these labels.
    """
    labeled, minimum, recipe = run.labeled or config.split.labeled, config.minimum, config.train_of(run).target
    if not config.advise or not isinstance(labeled, int):
        return
    enough = labels_for_folds(minimum, recipe)
    if labeled < enough:
        key = f"runs.{name}.labeled" if run.labeled else "split.labeled"
        yield (
            f"`runs.{name}`: `advise` holds out one of {FOLDS} folds of the {labeled} labeled images in turn: "
            f"a fold, or the steps on the rest, would be fewer than the minimum "
            f"({minimum.images} images, {minimum.steps} steps)",
            f"Set `advise: false`, or `{key}: {enough}` or more, or lower `privacy.smallest_images` and "
            "`privacy.smallest_steps` if the hospital agrees.",
        )


def labels_for_folds(minimum: Minimum, recipe: Recipe) -> int:
    """The smallest number of labeled images whose folds, and the steps on the rest, reach the minimum."""
    labeled = FOLDS * minimum.images
    while recipe.epochs * epoch_steps(labeled - labeled // FOLDS, recipe.batch) < minimum.steps:
        labeled += 1
    return labeled


def _phase_problems(phase: Run, config: Config, entry: Mapping[str, Any]) -> Problems:
    """What of a phase secure aggregation or differential privacy forbids."""
    model = config.model
    if config.privacy.secure_aggregation:
        for why in _needs_each(phase, config, entry):
            yield (
                f"{phase.method} cannot run with privacy.secure_aggregation: {why}",
                "Set secure_aggregation to false, or choose a method and options that need only sums "
                "(docs/explanation/privacy.md).",
            )
    if config.differential_of(phase) is None:
        return
    if entry.get("classical") or not entry["noised"]:
        yield (
            f"differential privacy: the sources of {phase.method} send values that DP-SGD does not protect",
            "Remove `differential`, or remove the run (docs/explanation/privacy.md lists what allows it).",
        )
    if model.backbone.startswith("resnet") and model.norm == "batch":
        what = "differential privacy: BatchNorm mixes the images of a batch, so no image has its own gradient"
        yield what, "Set `model.norm: group`."
    if phase.auxiliary:
        what = "auxiliary heads are trained without noise and influence the gradients that are sent"
        yield f"differential privacy: {what}", "Remove `auxiliary` or `differential` from this run."
    if config.train_of(phase).precision != "float32":
        what = f"differential privacy: {config.train_of(phase).precision} is too coarse for exact clipping"
        yield what, "Set `train.precision: float32`."
    if config.train_of(phase).source.steps is not None:
        what = "differential privacy: the budget is accounted for whole epochs, not for `steps`"
        yield what, "Remove `train.source.steps`."


def _needs_each(phase: Run, config: Config, entry: Mapping[str, Any]) -> Iterator[str]:
    """Why the server must see single answers of the sources in this phase."""
    train = config.train_of(phase)
    if entry["needs_each"]:
        yield entry["needs_each"]
    yield from (why for option, why in entry.get("needs_each_with", {}).items() if phase.options.get(option))
    if entry["needs_each"] or not entry["asks_sources"]:
        return
    if train.validation.norms or train.validation.directions:
        yield "`train.validation` compares single updates (norms, directions), which nobody sees under masks"
    sources = train.participants(len(config.split.clients) - 1)
    if sources < 2:
        yield "a sum over one source is its own answer; two must take part in a round, and better three"


def check_minimum(
    name: str, run: Run, config: Config, known: Catalog, images: Images, where: str, targets: Sequence[str] = ()
) -> None:
    """Raise if a client has fewer images or steps than the minimum; clients missing in `images` are not checked."""
    for what, fix in _minimum_problems(name, run, config, known, images, targets or config.split.targets):
        raise FdamedError(what, where, fix)


def _minimum_problems(
    name: str, run: Run, config: Config, known: Catalog, images: Images, targets: Sequence[str]
) -> Problems:
    for phase in config.phases(run).values():
        entry = known[phase.method]
        for target in targets:
            for client, recipe, n in training_images(phase, config, entry, target, images):
                steps = None if entry.get("classical") else local_steps(n, recipe)
                refused = config.minimum.refusal(client, n, steps)
                if refused:
                    few, what = n < config.minimum.images, refused.what
                    fix = refused.fix if few else too_few_steps_fix(name, phase, config, recipe, n)
                    if few and client == target and entry["target_labels"] and not entry["every_target_label"]:
                        key = f"runs.{name}.labeled" if phase.labeled else "split.labeled"
                        what = what.replace(" images;", f" labeled images to train on ({key});", 1)
                        fix = f"Write `{key}: {config.minimum.images}` or more. Or: {fix}"
                    if few and client not in config.split.targets and getattr(config.split, "held_out", "") == "all":
                        fix = f"Write `split.held_out: targets`, so that sources train on all their images. Or: {fix}"
                    yield f"`runs.{name}`, target {target}: {what}", fix


def too_few_steps_fix(name: str, phase: Run, config: Config, recipe: Recipe, images: int) -> str:
    """How to fix a client with too few local steps: any of these is enough."""
    one = epoch_steps(images, recipe.batch)
    side = "target" if recipe == config.train_of(phase).target else "source"
    if recipe.steps is not None and recipe.steps < config.minimum.steps:
        key = f"runs.{name}.train" if side in (phase.train or {}) else "train"
        return (
            f"Write `{key}.{side}.steps: {config.minimum.steps}`, or `privacy.smallest_steps: {recipe.steps}` if the "
            "hospital agrees (docs/explanation/privacy.md)."
        )
    own = f"runs.{name}.train.{side}.epochs"
    epochs = -(-config.minimum.steps // one)
    result = f"{vague(images, CELL)} images in batches of {recipe.batch}: {epochs * one} steps"
    every = "" if side in (phase.train or {}) else f", or for all runs `train.{side}.epochs: {epochs}`"
    return (
        f"Write `{own}: {epochs}` ({result}){every}, or leave {name} out of `runs`, or write "
        f"`privacy.smallest_steps: {recipe.epochs * one}` if the hospital agrees (docs/explanation/privacy.md)."
    )


def training_images(
    phase: Run, config: Config, entry: Mapping[str, Any], target: str, images: Images
) -> list[tuple[str, Recipe, int]]:
    """The clients that this phase may ask, with their recipes and numbers of training images, where known."""
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
    """An upper bound of each client's training images, but for one patient's, from `split` alone."""
    split = config.split
    if not isinstance(split, Split):
        return {}
    whole = 10**9 if split.per_class == "all" else 2 * split.per_class
    few = min(split.labeled, whole)
    return {client: {"train": whole - few, "adapt": few} for client in split.clients}
