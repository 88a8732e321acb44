"""What a method is, and the register of all of them.

A method is frozen hyper-parameters, a server program `round`, and the steps it may ask a hospital to run.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from torch import Tensor, nn

from fdamed.federation.client import Step
from fdamed.federation.messages import Weights, kinds, message
from fdamed.federation.server import Server
from fdamed.models.flat import Layout, named_tensors

S = TypeVar("S")
T = TypeVar("T")


@message
class Model:
    """A model on its way, and the state of every method that remembers nothing else."""

    x: Weights


class Method(Generic[S]):
    """Frozen hyper-parameters (the fields) and the program of the server. State goes in and comes out."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    target_labels: ClassVar[bool]
    """False: the target's data has no labels to peek at."""
    every_target_label: ClassVar[bool] = False
    """True: the target trains on all of its labels, as no real target could."""
    steps: ClassVar[tuple[Step, ...]]
    """Every step of every variant."""
    state: ClassVar[type]
    keeps: ClassVar[tuple[str, ...]] = ()
    """Where every hospital keeps a model of its own: the names in its memory that are this model.
    It is saved in the hospital's folder and judged there with `predictor`; `final` is then what they share."""

    parts: ClassVar[bool] = False
    """True: what is learned is more than the network; it is judged with `predictor`, made of theta.safetensors."""

    needs_each: ClassVar[str] = "it does not say that sums over the sources are enough"
    """Why the server must see each source's answer by itself; empty: sums over the sources would do."""
    noised: ClassVar[bool] = False
    """True: its sources let out nothing but what local training under noise has made."""
    asks_sources: ClassVar[bool] = True
    """False: nothing is ever asked of the sources."""
    asks_target: ClassVar[bool] = True
    """False: nothing is ever asked of the target."""

    def length(self, rounds: int) -> int:
        """How many rounds the method runs when the study has `rounds`."""
        return rounds

    def asks(self) -> tuple[Step, ...]:
        """The steps that these options ask for: what the hospitals' policies are held against."""
        return self.steps

    def extra_parameters(self, sources: int, features: int, classes: int) -> int:
        """Trainable numbers beyond one network a hospital, with this many sources, features and classes."""
        return 0

    def start(self, theta: Tensor) -> S:
        raise TypeError(f"{type(self).__name__} does not say how it starts")

    def round(self, state: S, server: Server) -> S:
        raise TypeError(f"{type(self).__name__} has no round")

    def final(self, state: S) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not say what it learned")

    def named(self, final: Tensor, layout: Layout) -> dict[str, Tensor]:
        """What `final` is made of, by name: the content of a run's theta.safetensors."""
        return named_tensors(final, layout)

    def handover(self, final: Tensor, layout: Layout) -> Tensor:
        """What a second phase goes on with: the network, without anything that a method puts behind it."""
        return final[: layout.size].clone()

    def predictor(self, network: nn.Module, kept: Mapping[str, Tensor]) -> nn.Module | None:
        """The module, made around the network, that predicts with these: what a hospital keeps, or `named` of what is
        shared; None: not yet."""
        raise TypeError(f"{type(self).__name__} does not say what it predicts with")


class OneModel(Method[Model]):
    """A method whose whole state is one model."""

    state: ClassVar[type] = Model

    def start(self, theta: Tensor) -> Model:
        return Model(x=theta)

    def final(self, state: Model) -> Tensor:
        return state.x


REGISTRY: dict[str, type[Method[Any]]] = {}


@dataclass_transform(frozen_default=True)
def method(name: str) -> Callable[[type[T]], type[T]]:
    """Register a method under its name in the configuration, and freeze its fields."""

    def register(cls: type[T]) -> type[T]:
        made: Any = dataclasses.dataclass(frozen=True)(cls)
        if name in REGISTRY:
            raise TypeError(f"two methods are called {name}")
        made.name = name
        REGISTRY[name] = made
        return cls

    return register


def option(default: Any, help: str, low: float | None = None, high: float | None = None) -> Any:
    """A hyper-parameter with its meaning and bounds."""
    return dataclasses.field(default=default, metadata={"help": help, "low": low, "high": high})


def describe() -> dict[str, dict[str, Any]]:
    """Every method with its options and what crosses the wire: the content of catalog.json."""
    return {name: description(cls) for name, cls in sorted(REGISTRY.items())}


def description(cls: Any) -> dict[str, Any]:
    """One entry of the catalog: options, papers, and what the steps of this class send."""
    hints = get_type_hints(cls)
    options = {}
    for field in dataclasses.fields(cls):
        entry: dict[str, Any] = {"help": field.metadata["help"], "default": field.default}
        entry |= _type_entry(hints[field.name])
        entry |= {k: field.metadata[k] for k in ("low", "high") if field.metadata[k] is not None}
        options[field.name] = entry
    return {
        "module": cls.__module__,
        "title": cls.title,
        "paper": cls.paper,
        "target_labels": cls.target_labels,
        "every_target_label": cls.every_target_label,
        "own_models": bool(getattr(cls, "keeps", ())),
        "parts": bool(getattr(cls, "parts", False)),
        "needs_each": getattr(cls, "needs_each", "the features of all hospitals meet at one place"),
        "noised": bool(getattr(cls, "noised", False)),
        "asks_sources": bool(getattr(cls, "asks_sources", True)),
        "asks_target": bool(getattr(cls, "asks_target", True)),
        "options": options,
        "wire": [
            {"step": s.name, "to_hospital": kinds(s.question), "from_hospital": kinds(s.answer)} for s in cls.steps
        ],
    }


def _type_entry(hint: Any) -> dict[str, Any]:
    if get_origin(hint) is Literal:
        return {"type": "choice", "choices": list(get_args(hint))}
    if get_origin(hint) in (Union, types.UnionType):
        raise TypeError("a method's option has one plain type")
    return {"type": hint.__name__}
