"""The protocol in words: what the headline's caption must say so that its figures can be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fdamed.config.study import Config, Recipe
from fdamed.core.disclosure import vague
from fdamed.evaluation.protocol import Budget
from fdamed.evaluation.run_tables import ALL_TARGETS

FEW, MANY = 4, 20
"""Different numbers of steps that a sentence can hold, and sources that it can name."""


def sentences(config: Config, cohort: Mapping[str, Any], entries: Sequence[Budget], target: str) -> list[str]:
    """Seeds, rounds, recipes, validation images and local steps of the runs at `target`."""
    targets = list(config.split.targets) if target == ALL_TARGETS else [target]
    here = [b for b in entries if b.target in targets]
    lengths = sorted({b.rounds for b in here})
    out = [
        "The headline is the last round’s.",
        f"Seeds {', '.join(map(str, config.seeds))}; rounds {' or '.join(map(str, lengths)) or config.train.rounds}.",
        f"A round is {_recipe(config.train.source)} at each source and {_recipe(config.train.target)} at the target"
        f"{'; runs with train settings of their own differ (see the configuration)' if _own(config) else ''}.",
        _validation(config, cohort, targets),
    ]
    return [*out, *_learning(config), *_steps(here, target)]


def _learning(config: Config) -> list[str]:
    """Who takes part, how the learning rate falls, when a run ends, what comes after it."""
    train, out = config.train, []
    if train.participation < 1:
        out.append(f"{train.participation:.0%} of the sources, drawn anew, take part in a round.")
    for side, recipe in (("sources", train.source), ("target", train.target)):
        if recipe.decay:
            fall = f"by {recipe.decay.factor:g} every {recipe.decay.every} rounds"
            out.append(f"The learning rate of the {side} is multiplied {fall}.")
    if train.patience:
        out.append(f"A run ends after {train.patience} rounds without a lower training loss; no score is asked.")
    seconds = {run.then.method for run in config.runs.values() if run.then}
    if seconds:
        out.append(
            f"Runs with a second phase go on with {' or '.join(sorted(seconds))} at the target: their headline and "
            "their chosen round are of that phase."
        )
    return out


def _own(config: Config) -> bool:
    return any(run.train for run in config.runs.values())


def _recipe(recipe: Recipe) -> str:
    return f"{recipe.epochs} epoch{'s' if recipe.epochs > 1 else ''} in batches of {recipe.batch}"


def _validation(config: Config, cohort: Mapping[str, Any], targets: Sequence[str]) -> str:
    sizes = [int(cohort["clients"][t]["images"].get("val", 0)) for t in targets]
    if not any(sizes):
        return "There is no validation split, so no round can be chosen; the test split never chooses one."
    smallest = config.privacy.smallest_cell
    shown = [vague(n, smallest) for n in sizes]
    images = " / ".join(shown) if len(shown) <= 6 else f"{vague(min(sizes), smallest)} to {vague(max(sizes), smallest)}"
    return (
        f"“Chosen round” is the first with the best validation AUC (accuracy where that is undefined): it costs the "
        f"target {images} labeled validation images beside those it trains on. The test split never chooses a round."
    )


def _steps(here: Sequence[Budget], target: str) -> list[str]:
    """How many optimizer steps a round has where, if all runs agree on it."""
    if target == ALL_TARGETS:
        return ["The local steps of each run are with its target."]
    counts: dict[str, set[int]] = {}
    for budget in here:
        for client, n in budget.sources.items():
            counts.setdefault(client, set()).add(n)
    alike = all(len(n) == 1 for n in counts.values())
    if not counts:
        return []
    if not alike:
        return ["The runs do not have the same number of local steps at the sources: see the budget."]
    listed = ", ".join(f"{min(n)} at {client}" for client, n in counts.items())
    if len(counts) > MANY:
        each = [min(n) for n in counts.values()]
        listed = f"{min(each)} to {max(each)} at each of {len(each)} sources"
    out = [f"Optimizer steps a round, the same for every run that trains there: {listed}."]
    own = sorted({(b.own, b.labeled) for b in here if b.own is not None})
    if len(own) > FEW:
        return [*out, f"At {target} they depend on the labeled images: see the budget."]
    told = ", ".join(f"{n} on {_images(labeled)}" for n, labeled in own)
    return [*out, f"At {target}: {told}."] if told else out


def _images(labeled: str) -> str:
    return "its unlabeled images" if labeled == "0" else f"{labeled} labeled images"
