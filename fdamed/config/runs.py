"""The `runs` section: the rows of a study's tables, each a method with its options and its own changes of the study."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fdamed.config.base import Strict
from fdamed.config.model import Head
from fdamed.config.privacy import Differential

Value = float | int | str | bool
WARMUP, MAIN, THEN = "warmup", "main", "then"
"""The phases of a run."""


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
    """The folder and the values of each run of a sweep."""
    for values in itertools.product(*sweep.values()):
        chosen = dict(zip(sweep, values, strict=True))
        yield name + "".join(f"-{k}-{v}" for k, v in chosen.items()), chosen
