"""Checks across sections: does the split fit the data, do the runs fit the model, does each method know its options?"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fdamed.config.datasets import Benchmark
from fdamed.config.error_texts import shortened
from fdamed.config.runs import MAIN, MOST, SIDES, THEN, WARMUP, Run, Then, Warmup
from fdamed.config.split import Partition
from fdamed.config.train import Recipe
from fdamed.core.errors import nearest

if TYPE_CHECKING:
    from fdamed.config.study import Config

Catalog = Mapping[str, Mapping[str, Any]]
Problems = Iterator[tuple[str, str]]
"""What is wrong, and how to fix it; only the first is reported."""
FIX = "Fix the key and try again; nothing was started."
LIMITS = {"low": -math.inf, "high": math.inf}
RENAMED = {("gp", "align"): {True: "each", False: "none"}}
"""(Method, option) -> what its values of earlier versions are called now."""
NOT_SWEPT = ("method", "sweep", "tune", "auxiliary", "train", "then")
TUNED = ("alpha", "warmup", "lr", *(f"{s}.{key}" for s in SIDES for key in Recipe.model_fields if key != "decay"))
"""What `tune` may vary besides the options of the method."""


def check_sections(config: Config) -> None:
    """Raise ValueError if two sections contradict each other."""
    data, split, model = config.data, config.split, config.model
    if len(set(config.seeds)) != len(config.seeds):
        raise ValueError("`seeds` lists a seed twice")
    if isinstance(data, Benchmark) != isinstance(split, Partition):
        raise ValueError(f"`split.by: {split.by}` does not fit `data.layout: {data.layout}`")
    if isinstance(data, Benchmark) and isinstance(split, Partition):
        _all_known("split", split.sets, data.domains, "`data.domains`")
    elif (key := {v: k for k, v in getattr(data, "columns", {}).items() if v != k}.get(split.by)) is not None:
        raise ValueError(
            f"`split.by: {split.by}` is a column of the table, which is mapped to `{key}`: write `by: {key}`"
        )
    elif model.backbone == "mlp" or model.channels != 1:
        raise ValueError("radiographs are gray images: set `model.channels: 1` and choose a cnn or a ResNet")
    if model.backbone == "cnn" and model.side != config.image.size:
        raise ValueError(f"`model.side` ({model.side}) and `image.size` ({config.image.size}) must be equal for a cnn")
    for name, run in config.runs.items():
        for key, values in (run.sweep or {}).items():
            if key in NOT_SWEPT:
                raise ValueError(f"`runs.{name}.sweep` cannot vary `{key}`: write one run for each value")
            if not values or len({str(v) for v in values}) != len(values):
                raise ValueError(f"`runs.{name}.sweep.{key}` needs at least one value, and each value only once")
        if run.tune is not None:
            _check_tune(name, run)
    runs = config.expanded_runs()
    published = config.published.values if config.published else {}
    _all_known("published.values", published, runs, "the runs of the study")
    for value in published.values():
        _all_known("published.values", value if isinstance(value, dict) else (), split.targets, "`split.target`")
    for name, run in config.trained_runs().items():
        _check_run(name, run, config)


def _all_known(key: str, given: Iterable[str], known: Collection[str], where: str) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"`{key}` names {name}, which is not in {where}{nearest(name, list(known))}")


def _check_tune(name: str, run: Run) -> None:
    """Whether `tune` has values to choose from, of options that nothing else decides."""
    key, tune = f"runs.{name}.tune", run.tune or {}
    if not tune:
        raise ValueError(f"`{key}` is empty: give options with their values, for example {{lr: [0.001, 0.0003]}}")
    for option, values in tune.items():
        if option in Run.model_fields and option not in TUNED:
            raise ValueError(f"`{key}` cannot choose `{option}`: it is no option of the method, nor of how it trains")
        if len(values) < 2 or len(set(map(str, values))) < len(values) or len(set(values)) < len(values):
            raise ValueError(f"`{key}.{option}` needs at least two values, and each only once; one value is an option")
        if option in (run.sweep or {}):
            raise ValueError(
                f"`{option}` is both in `sweep` and in `tune` of {name}: compare its values, or choose one"
            )
        if option in run.options:
            raise ValueError(f"`{option}` is both an option and in `tune` of {name}: remove one of them")
    if "lr" in tune and any(f"{side}.lr" in tune for side in SIDES):
        raise ValueError(f"`{key}` has `lr`, which is that of both sides, and one side's own: remove one of them")
    count = math.prod(map(len, tune.values()))
    if count > MOST:
        raise ValueError(
            f"`{key}` has {count} candidates, at most {MOST} are allowed: "
            "with more of them the best validation score is a matter of luck"
        )


def _check_run(name: str, run: Run, config: Config) -> None:
    fixed = [k for k in ("device", "transport", "threads") if k in (run.train or {})]
    if fixed:
        raise ValueError(f"`runs.{name}.train` cannot change {', '.join(fixed)}: set it in `train`, for all runs")
    train, sources = config.train_of(run), len(config.split.clients) - 1
    if train.quorum > train.participants(sources):
        drawn = f"{train.participants(sources)} of {sources} sources take part in a round"
        raise ValueError(f"`train.quorum` of {name} is {train.quorum}, but {drawn}")
    faults = train.faults
    if faults and (misfit := faults.misfit(tuple(config.split.clients))):
        raise ValueError(f"`train.faults` of {name} {misfit}")
    if run.auxiliary:
        _all_known(f"runs.{name}.auxiliary", run.auxiliary.heads, config.model.heads, "`model.heads`")
    if run.labeled and isinstance(config.split.labeled, int) and run.labeled > config.split.labeled:
        raise ValueError(f"`runs.{name}.labeled` is {run.labeled}, but `split.labeled` only {config.split.labeled}")


def method_problems(config: Config, known: Catalog) -> Problems:
    """Unknown methods and options, and methods that do not fit together."""
    for name, run in config.expanded_runs().items():
        yield from _tune_problems(name, run, config, known)
    for name, run in config.trained_runs().items():
        for key, section in ((name, run), (f"{name}.warmup", run.warmup), (f"{name}.then", run.then)):
            if section:
                yield from _option_problems(key, section, known)
        yield from _phase_problems(name, config.phases(run), config, known)
        if known[run.method].get("classical"):
            yield from _classical_problems(name, run, config, known)


def _tune_problems(name: str, run: Run, config: Config, known: Catalog) -> Problems:
    """Options that cannot be chosen, and splits without a validation part to choose by."""
    phases = config.phases(run).values()
    if run.select == "reverse" and not run.tune:
        yield (
            f"`runs.{name}.select` chooses among candidates, and there is no `tune`",
            "Add `tune`, or remove `select`.",
        )
    if not run.tune or any(phase.method not in known for phase in phases):
        return
    method = known[run.method]
    allowed = sorted([*method["options"], *(key for key in TUNED if key != "alpha" or run.auxiliary)])
    for option in run.tune:
        if option not in allowed:
            near = nearest(option, allowed)
            yield f"`runs.{name}.tune` cannot choose `{option}`{near}; {run.method} allows: {', '.join(allowed)}", FIX
    if method.get("classical"):
        yield f"`runs.{name}.tune`: {run.method} is fitted once and has no candidates", "Use `sweep`, or remove `tune`."
    if config.differential_of(run):
        what = f"`runs.{name}.tune`: the privacy budget covers one training, and every candidate is one more"
        yield what, "Remove `tune` or `differential`."
    if run.select == "reverse":
        if config.target_labels(run):
            what = (
                f"`runs.{name}.select`: {run.method} trains on labels of the target, whose validation part can choose"
            )
            yield what, "Remove `select`: reverse validation is for runs without target labels."
        return
    if not config.split.val:
        what = f"`runs.{name}.tune` chooses on validation images, and `split.val` is 0"
        yield what, "Give `split.val` a share or a number of images; nothing was started."
    targets_only = isinstance(config.split, Partition) or config.split.held_out == "targets"
    if not config.target_labels(run) and targets_only:
        what = f"`runs.{name}.tune`: {run.method} uses no labels of the target, so that sources choose, which here have"
        yield f"{what} no validation part", "Set `split.held_out: all`, or remove `tune`; nothing was started."


def backbones(config: Config, known: Catalog) -> list[str]:
    """The feature extractors that a classical method can use: `init`, or a run that ends with one whole model."""
    methods = {name: known[run.method] for name, run in config.expanded_runs().items()}
    return ["init", *(n for n, m in methods.items() if not (m.get("classical") or m.get("own_models")))]


def _option_problems(key: str, run: Run | Warmup | Then, known: Catalog) -> Problems:
    fix = f"{FIX} `fdamed methods` lists them, `fdamed methods NAME` explains one."
    if run.method not in known:
        methods, near = ", ".join(sorted(known)), nearest(run.method, sorted(known))
        yield f"`runs.{key}`: unknown method `{run.method}`{near}; allowed: {methods}", fix
    options = known[run.method]["options"]
    allowed = sorted([*options, *type(run).model_fields])
    for name, value in run.options.items():
        if name not in options:
            near = nearest(name, allowed)
            yield f"unknown key `runs.{key}.{name}`{near}; {run.method} accepts: {', '.join(allowed)}", fix
        problem = _option_problem(value, options[name])
        if isinstance(value, bool) and (new := RENAMED.get((run.method, name), {}).get(value)):
            problem = f"is now called `{new}`; {problem}"
        if problem:
            yield f"`runs.{key}.{name}`: {problem} (given: {shortened(value)})", fix


def _option_problem(value: Any, option: dict[str, Any]) -> str | None:
    """What is wrong with the value of an option, or None."""
    numeric = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    choices = option.get("choices", ())
    problems = {
        "bool": ("should be true or false", not isinstance(value, bool)),
        "int": ("should be a whole number", not numeric or int(value) != value),
        "float": ("should be a number", not numeric),
        "choice": (f"should be one of {', '.join(map(str, choices))}", value not in choices),
    }
    problem, holds = problems.get(option["type"], ("", False))
    low, high = (default if (end := option.get(key)) is None else end for key, default in LIMITS.items())
    if not holds and numeric and not low <= value <= high:
        return f"should be between {low} and {high}"
    return problem if holds else None


def _chosen(phase: Run, entry: Mapping[str, Any], need: str) -> str:
    """The method with the choices that have this need; empty: it has chosen otherwise, or never has the need."""
    wanted = entry.get(need)
    chosen = {k: phase.options.get(k, entry["options"][k]["default"]) for k in wanted or ()}
    return ", ".join((phase.method, *(f"{k}: {v}" for k, v in chosen.items()))) if chosen == wanted else ""


def _phase_problems(name: str, phases: Mapping[str, Run], config: Config, known: Catalog) -> Problems:
    """A phase starts from one model that works alone, and a warm-up leaves rounds to the run's method."""
    main = phases[MAIN]
    for phase in phases.values():
        entry, train = known[phase.method], config.train_of(phase)
        optimizer, precision = train.source.optimizer, train.precision
        if optimizer != "sgd" and (given := _chosen(phase, entry, "needs_sgd")):
            what = f"`runs.{name}`: {given} needs plain SGD at the sources, which train with {optimizer}"
            yield what, "Write `train: {source: {optimizer: sgd, lr: 0.01}}` in the run; nothing was started."
        if precision != "float32" and (given := _chosen(phase, entry, "needs_float32")):
            what = f"`runs.{name}`: {given} takes differences that are smaller than the rounding of {precision}"
            fix = "Set `train.precision: float32`, in `train` or in the run, or another value"
            yield what, f"{fix} of {', '.join(entry['needs_float32'])}; nothing was started."
        elif precision == "float16" and not entry.get("float16", True):
            what = f"`runs.{name}`: {phase.method} computes gradients that nothing scales for float16"
            yield what, "Set `train.precision: bfloat16` or `tf32`, in `train` or in the run; nothing was started."
    if warmup := phases.get(WARMUP):
        if known[warmup.method]["own_models"] or known[warmup.method]["parts"]:
            what = f"`runs.{name}.warmup`: {warmup.method} does not end with one model for {main.method} to start from"
            yield what, "Choose another method, such as fedavg; nothing was started."
        taken, rounds = (known[p.method]["length"] * config.train_of(p).rounds for p in (warmup, main))
        if taken >= rounds:
            what = f"`runs.{name}.warmup` leaves none of the {rounds} rounds to {main.method}"
            yield what, "Shorten the warm-up, or raise `train.rounds`; nothing was started."
    if then := phases.get(THEN):
        for phase in (main, then):
            if known[phase.method]["own_models"]:
                what = f"`runs.{name}.then`: {phase.method} ends with one model for each client, not with one for all"
                yield what, "Remove `then`, or choose methods that end with one model."
        head = known[then.method]["options"].get("head", {})
        if known[main.method]["parts"] and then.options.get("head", head.get("default")) != "new":
            what = f"`runs.{name}.then`: the head of {main.method} needs parts that a second phase does not have"
            yield what, "Start the second phase with a new head: `then: {method: finetune_head, head: new}`."


def _classical_problems(name: str, run: Run, config: Config, known: Catalog) -> Problems:
    """A classical method needs the features of all clients, from a backbone that exists."""
    if "features" not in config.privacy.release:
        what = f"`runs.{name}`: {run.method} needs the features of every client, which `privacy.release` does not list"
        yield what, "Remove the run, or add `features` to `privacy.release` if the clients agree."
    wanted, allowed = run.options.get("features", "init"), backbones(config, known)
    if wanted not in allowed:
        near = nearest(str(wanted), allowed)
        yield f"`runs.{name}.features` is {wanted!r}{near}; allowed: {', '.join(allowed)}", FIX
    for key in ("auxiliary", "labeled", "train", "noise", "warmup"):
        if getattr(run, key) is not None:
            yield f"`runs.{name}.{key}`: a classical method trains no client and ignores it", FIX
