"""The `runs` section: the rows of a study's tables, each a method with its options and its own changes of the study."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fdamed.config.base import Strict
from fdamed.config.model import Head
from fdamed.config.privacy import Differential
from fdamed.config.train import SWEPT


def _number(value: Any) -> Any:
    """YAML takes 1e-3, without a dot, for text."""
    return float(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value


NUMBER = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
Value = Annotated[float | int | str | bool, BeforeValidator(_number)]
WARMUP, MAIN, THEN = "warmup", "main", "then"
"""The phases of a run."""
SIDES = ("source", "target")
"""Of `train`: `lr` of a sweep or of `tune` is that of both, `source.epochs` a key of one."""
MOST = 32
"""Candidates of a run at most: the more there are, the more the best validation score is a matter of luck."""


class Auxiliary(Strict):
    """AuxInfo of the healthcare paper: L_main + alpha * sum of the auxiliary losses, at the sources only."""

    heads: tuple[Head, ...]
    """Which of `model.heads` are trained."""
    alpha: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the auxiliary losses."""
    share: bool = True
    """True: the heads are a part of the model that is sent and averaged, as in the paper's Table 3 and its code;
    false: every source keeps heads of its own, which never leave it (docs/explanation/privacy.md)."""


class WithOptions(BaseModel):
    """A section whose other keys are options of its method."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class Warmup(WithOptions):
    """A first phase: the first rounds of the run, by another method. Other keys are options of that method."""

    method: str = "fedavg"
    """A registered method."""
    rounds: Annotated[int, Field(ge=1)]
    """How many of the run's rounds it takes."""
    train: dict[str, Any] | None = Field(None, examples=[{"source": {"lr": 0.0001}}])
    """Changes of the run's `train` in this phase."""


class Then(WithOptions):
    """A second phase, which starts from the model of the first. Other keys are options of its method."""

    method: str
    """A registered method, for instance finetune_head."""
    rounds: Annotated[int, Field(ge=1)] | None = None
    """Default: as many rounds as the first phase."""
    train: dict[str, Any] | None = Field(None, examples=[{"source": {"lr": 0.0001}}])
    """Changes of the run's `train` in this phase."""


def _by_rounds(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return ({"rounds": value} if value else None) if number else value


def _by_name(value: Any) -> Any:
    return {"method": value} if isinstance(value, str) else value


class Run(WithOptions):
    """One run: a method, its options, and its changes of the study. Other keys are options of the method."""

    method: str = ""
    """A registered method. Default: the name of the run."""
    auxiliary: Auxiliary | None = None
    labeled: Annotated[int, Field(ge=1)] | None = None
    """Use only this many of the target's labeled images."""
    train: dict[str, Any] | None = None
    """Changes of `train` for this run, for example {target: {lr: 0.003}}."""
    noise: Annotated[float, Field(ge=0)] | None = Field(None, examples=[0.4])
    """Noise on the target's pixels. Default: `split.noise`."""
    differential: Differential | None = None
    """Differential privacy at the sources. Default: `privacy.differential`."""
    sweep: dict[str, list[Value]] | None = None
    """Option -> values: one run for each combination."""
    tune: dict[str, list[Value]] | None = Field(None, examples=[{"lr": [0.001, 0.0003], "beta": [0.2, 0.5]}])
    """Option -> values: each combination is a candidate, and validation chooses one for each target and seed. Options
    of the method, `alpha`, `warmup`, `lr` (of both sides), `source.KEY` and `target.KEY` of `train`
    (docs/how_to/labels_patients_seeds.md)."""
    select: Literal["validation", "reverse"] = "validation"
    """How `tune` chooses. validation: by the validation parts; reverse: by reverse validation, which needs no label of
    the target and no validation part."""
    warmup: Annotated[Warmup | None, BeforeValidator(_by_rounds, json_schema_input_type=int | Warmup | None)] = None
    """A first phase: a number of FedAvg's rounds, or `rounds` with a method, its options and `train`."""
    then: Annotated[Then | None, BeforeValidator(_by_name, json_schema_input_type=str | Then | None)] = None
    """A second phase: a method's name, or a method with `rounds`, `train` and options."""


@dataclass(frozen=True)
class Swept:
    """A run of a sweep."""

    run: str
    """The name of the sweep in the configuration."""
    values: dict[str, Value]
    shared: dict[str, list[Value]] = field(default_factory=dict)
    """Swept options that the run does not depend on: it is one run for all their values."""


def laid_over(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`base` with the changes of `over`; sections such as `target` are merged key by key."""
    out = dict(base)
    for key, value in over.items():
        out[key] = out[key] | value if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def combinations(name: str, sweep: dict[str, list[Value]]) -> Iterator[tuple[str, dict[str, Value]]]:
    """The folder and the values of each run of a sweep, or of each candidate."""
    for values in itertools.product(*sweep.values()):
        chosen = dict(zip(sweep, values, strict=True))
        yield name + "".join(f"-{k}-{v}" for k, v in chosen.items()), chosen


def varied(run: Run, values: dict[str, Value]) -> Run:
    """The run with these values of a sweep or of `tune`."""
    fields: dict[str, Any] = run.model_dump()
    train: dict[str, Any] = {}
    for key, value in values.items():
        side, dot, name = key.partition(".")
        if key == "alpha" and run.auxiliary:
            fields["auxiliary"] = run.auxiliary.model_dump() | {"alpha": value}
        elif key in SWEPT:
            train.setdefault("faults", {})[key] = value
        elif key == "lr" or (dot and side in SIDES):
            for one in (side,) if dot else SIDES:
                train.setdefault(one, {})[name or key] = value
        else:
            fields[key] = value
    if train:
        own = run.train or {}
        fields["train"] = own | {key: (own.get(key) or {}) | value for key, value in train.items()}
    return Run.model_validate(fields)


def candidates(name: str, run: Run) -> dict[str, dict[str, Value]]:
    """Folder -> values of each candidate of an expanded run; empty: it is not tuned."""
    return dict(combinations(name, run.tune)) if run.tune else {}


def tuned_to(run: Run, values: dict[str, Value]) -> Run:
    """The run with one candidate's values."""
    return varied(run.model_copy(update={"tune": None}), values)
