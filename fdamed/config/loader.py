"""Reading a configuration: everything is checked, and each mistake is one clear line.

`config/schema.json` is generated from here (`fdamed schema`); a test fails if it is stale.
What a method's own options are is known to `methods/`; `methods/catalog.json`, generated from them,
lets this file check a run's options without importing torch.
"""

from __future__ import annotations

import difflib
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fdamed.config import yaml_reader as plain_data
from fdamed.config.datasets import dataset_class
from fdamed.config.policy_checks import check_guards
from fdamed.config.runs import Run
from fdamed.config.split import Partition, Split
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError

SPLITS: dict[str, type[BaseModel]] = {"split": Split, "partition": Partition}
"""Tags that pydantic puts into the location of an error in `split`, which has two forms."""
LONGEST = 200
"""Characters of a wrong value that are shown."""
CATALOG = Path(__file__).parents[1] / "methods" / "catalog.json"


@cache
def catalog() -> dict[str, dict[str, Any]]:
    """Method -> {title, paper, target_labels, options: {name: {type, default}}, wire}; see `fdamed schema`."""
    content: dict[str, dict[str, Any]] = json.loads(CATALOG.read_text(encoding="utf-8"))
    return content


def load(*paths: Path | str) -> Config:
    """Read configuration files, later ones over earlier ones, and check everything."""
    raw: dict[str, Any] = {}
    for path in paths:
        raw = _merge(raw, read(Path(path)))
    return parse(raw, where=", ".join(str(p) for p in paths))


def parse(raw: dict[str, Any], where: str) -> Config:
    """Check a configuration that is already in memory; `where` names it in messages."""
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise FdamedError(_explain(error, raw), where, "Mend the key and start again; nothing was started.") from None
    for name, run in config.expanded_runs().items():
        first, *second = config.phases(run)
        _check_method(name, first, where)
        for phase in second:
            _check_method(f"{name}.then", phase, where)
            _check_handover(name, first, phase, where)
        if catalog()[run.method].get("classical"):
            _check_classical(name, run, config, where)
    for name, run in config.expanded_runs().items():
        check_guards(name, run, config, catalog(), where)
    return config


def backbones(config: Config) -> list[str]:
    """Whose features a classical row can take: `init`, or a run that leaves one whole model behind."""
    known, runs = catalog(), config.expanded_runs().items()
    return [
        "init",
        *(n for n, r in runs if not (known[r.method].get("classical") or known[r.method].get("own_models"))),
    ]


def read(path: Path) -> dict[str, Any]:
    """The keys of one file, not yet checked."""
    if not path.is_file():
        raise FdamedError("there is no such configuration file", str(path), "Check the path; config/ has examples.")
    try:
        content = plain_data.read(path)
    except plain_data.NotPlain as error:
        raise FdamedError(f"not readable as YAML: {error}", str(path), "Mend the file.") from None
    if not isinstance(content, dict):
        raise FdamedError("a configuration is a mapping of keys", str(path), "Start from a file in config/.")
    return content


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = _merge(out[key], value) if both else value
    return out


def _explain(error: ValidationError, raw: dict[str, Any]) -> str:
    """One line for each fault: key, what is wrong, what is allowed."""
    lines = []
    for fault in error.errors(include_url=False):
        path = _keys(fault["loc"])
        key = ".".join(path) or "configuration"
        if fault["type"] == "extra_forbidden":
            allowed = _allowed(tuple(fault["loc"][:-1]), raw)
            lines.append(f"unknown key `{key}`{_nearest(path[-1], allowed)}; allowed here: {', '.join(allowed)}")
        elif fault["type"] == "missing":
            lines.append(f"missing key `{key}`")
        else:
            hidden = isinstance(fault["input"], dict) or path[-1:] == ["salt"]
            shown = "" if hidden else f" (given: {_short(fault['input'])})"
            lines.append(f"`{key}`: {fault['msg'].removeprefix('Value error, ')}{shown}")
    return "; ".join(lines)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _keys(location: tuple[int | str, ...]) -> list[str]:
    """The keys as the user wrote them, without pydantic's tag behind `split`."""
    return [str(p) for i, p in enumerate(location) if not (i and location[i - 1] == "split" and p in SPLITS)]


def _allowed(location: tuple[int | str, ...], raw: dict[str, Any]) -> list[str]:
    """Keys that the model at `location` knows."""
    model: Any = Config
    for place, step in enumerate(location):
        fields = getattr(model, "model_fields", {})
        if place and step in SPLITS:
            model = SPLITS[str(step)]
        elif location[: place + 1] == ("data",):
            model = dataset_class(raw["data"]["layout"])
        elif step in fields:
            model = _model_in(fields[step].annotation)
    return sorted(getattr(model, "model_fields", {}))


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_in(argument)
        if found is not None:
            return found
    return None


def _nearest(word: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(word, allowed, n=1)
    return f" (did you mean `{near[0]}`?)" if near else ""


def _check_method(name: str, run: Run, where: str) -> None:
    known = catalog()
    fix = "Mend the key and start again; nothing was started. `fdamed methods` lists methods and options."
    if run.method not in known:
        near = _nearest(run.method, sorted(known))
        raise FdamedError(
            f"`runs.{name}`: unknown method `{run.method}`{near}; allowed: {', '.join(sorted(known))}", where, fix
        )
    options = known[run.method]["options"]
    for key, value in run.options.items():
        if key not in options:
            raise FdamedError(
                f"unknown key `runs.{name}.{key}`{_nearest(key, sorted(options))}; "
                f"{run.method} knows: {', '.join(sorted([*options, *Run.model_fields]))}",
                where,
                fix,
            )
        fault = _misfit(value, options[key])
        if fault:
            raise FdamedError(f"`runs.{name}.{key}`: {fault} (given: {_short(value)})", where, fix)


def _check_handover(name: str, first: Run, second: Run, where: str) -> None:
    """A second phase begins with one model and ends with one: methods that leave hospitals their own do not fit."""
    for phase in (first, second):
        if catalog()[phase.method]["own_models"]:
            raise FdamedError(
                f"`runs.{name}.then`: {phase.method} leaves every hospital a model of its own, not one to go on with",
                where,
                "Drop `then`, or choose methods that end with one model.",
            )
    head = catalog()[second.method]["options"].get("head", {})
    if catalog()[first.method]["parts"] and second.options.get("head", head.get("default")) != "new":
        raise FdamedError(
            f"`runs.{name}.then`: the head of {first.method} reads what is not in the network alone",
            where,
            "Begin the second phase with a new head: `then: {method: finetune_head, head: new}`.",
        )


def _check_classical(name: str, run: Run, config: Config, where: str) -> None:
    """A row whose features meet at one place: only if hospitals let them out, and from a backbone that is there."""
    fix = "Mend the key and start again; nothing was started."
    if "features" not in config.privacy.release:
        what = f"`runs.{name}`: {run.method} needs the features of every hospital, and privacy.release has none"
        raise FdamedError(what, where, "Leave the run out, or let the hospitals add features to privacy.release.")
    wanted, known = run.options.get("features", "init"), backbones(config)
    if wanted not in known:
        what = f"`runs.{name}.features` is {wanted!r}{_nearest(str(wanted), known)}; allowed: {', '.join(known)}"
        raise FdamedError(what, where, fix)
    stray = [key for key in ("auxiliary", "labeled", "train", "noise") if getattr(run, key) is not None]
    if stray:
        raise FdamedError(f"`runs.{name}.{stray[0]}`: a classical row trains no hospital and takes none", where, fix)


def _misfit(value: Any, option: dict[str, Any]) -> str | None:
    """What is wrong with an option's value, by its entry in the catalog; None: nothing."""
    kind = option["type"]
    numeric = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if kind == "bool" and not isinstance(value, bool):
        return "should be true or false"
    if kind == "int" and (not numeric or int(value) != value):
        return "should be a whole number"
    if kind == "float" and not numeric:
        return "should be a number"
    if kind == "choice" and value not in option["choices"]:
        return f"should be one of {', '.join(map(str, option['choices']))}"
    low, high = option.get("low"), option.get("high")
    if numeric and ((low is not None and value < low) or (high is not None and value > high)):
        return f"should lie between {low if low is not None else '-inf'} and {high if high is not None else 'inf'}"
    return None


def schema() -> dict[str, Any]:
    """The JSON schema of a configuration file, with each method's options."""
    out: dict[str, Any] = Config.model_json_schema()
    out["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    out["title"] = "fdamed configuration"
    known = catalog()
    for name, methods in (("Run", ["", *sorted(known)]), ("Then", sorted(known))):
        run = out["$defs"][name]
        run["properties"]["method"]["enum"] = methods
        for entry in known.values():
            for key, option in entry["options"].items():
                run["properties"].setdefault(key, {"description": option.get("help", "")})
        run["additionalProperties"] = False
    return out
