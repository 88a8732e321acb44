"""The rows of a study: a method with its options, what is changed for it, and what comes after it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fdamed.config.datasets import Strict
from fdamed.config.privacy import Differential

Head = Literal["sex", "age", "view", "race"]


class Auxiliary(Strict):
    """AuxInfo of the healthcare paper: L_main + alpha * sum of the auxiliary losses, at the sources only."""

    heads: tuple[Head, ...]
    alpha: Annotated[float, Field(ge=0)] = 1.0


class Then(BaseModel):
    """A second phase, from the model that the first one ends with. Other keys are its method's options."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    method: str
    """Name of a registered method, for instance finetune_head."""
    rounds: Annotated[int, Field(ge=1)] | None = None
    """Default: as many as the first phase has."""
    train: dict[str, Any] | None = None
    """What differs from the run's `train` in this phase."""

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


def _by_name(value: Any) -> Any:
    return {"method": value} if isinstance(value, str) else value


class Run(BaseModel):
    """One row of the study: a method, its options, and what is changed for it. Other keys are the method's options."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    method: str = ""
    """Name of a registered method; default: the name of the run."""
    auxiliary: Auxiliary | None = None
    labeled: Annotated[int, Field(ge=1)] | None = None
    """Use only this many of the target's labeled images."""
    train: dict[str, Any] | None = None
    """What differs from `train` for this run, e.g. {target: {lr: 0.003}}."""
    noise: Annotated[float, Field(ge=0)] | None = None
    """Noise on the target's pixels instead of `split.noise`."""
    differential: Differential | None = None
    """Noise on the sources' training instead of `privacy.differential`."""
    sweep: dict[str, list[float | int | str | bool]] | None = None
    """Option -> values: one run for each combination."""
    then: Annotated[Then | None, BeforeValidator(_by_name, json_schema_input_type=str | Then | None)] = None
    """A second phase: the name of its method, or its method with `rounds`, `train` and options."""

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


@dataclass(frozen=True)
class Swept:
    """Where an expanded run stands in its sweep."""

    run: str
    """The run as it is written in the configuration."""
    values: dict[str, float | int | str | bool]


def laid_over(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`base` with what `over` changes, sections such as `target` key by key."""
    out = dict(base)
    for key, value in over.items():
        out[key] = out[key] | value if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def combinations(
    name: str, sweep: dict[str, list[float | int | str | bool]]
) -> Iterator[tuple[str, dict[str, float | int | str | bool]]]:
    for values in itertools.product(*sweep.values()):
        chosen = dict(zip(sweep, values, strict=True))
        yield name + "".join(f"-{k}-{v}" for k, v in chosen.items()), chosen
