"""What a method is, and the registry of all of them.

A method is frozen hyper-parameters, a server program `round`, and the steps it may ask a client to run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from torch import Tensor, nn

from fdamed.federation.client import Step
from fdamed.federation.messages import Weights, kinds, message
from fdamed.federation.server import Server
from fdamed.models.flat import Layout, named_tensors

S = TypeVar("S")
T = TypeVar("T")
Rule = Literal["", "average", "sum", "projection"]


@message
class Model:
    """A model that is sent, and the state of every method that remembers nothing else."""

    x: Weights


class Method(Generic[S]):
    """Frozen hyper-parameters (the fields) and the program of the server. State goes in and comes out."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    steps: ClassVar[tuple[Step, ...]]
    """Every step of every variant."""
    target_labels: ClassVar[bool] = False
    """False: the target's data has no labels."""
    every_target_label: ClassVar[bool] = False
    """True: the target trains on all of its labels, as no real target could."""
    asks_sources: ClassVar[bool] = True
    """False: nothing is ever asked of the sources."""
    asks_target: ClassVar[bool] = True
    """False: nothing is ever asked of the target."""
    noised: ClassVar[bool] = False
    """True: its sources send nothing, or nothing but what local training under DP-SGD has made. Default: whether all
    steps are noised."""
    needs_each: ClassVar[str] = "it does not declare that sums over the sources are enough"
    """Why the server must see each source's answer by itself; empty: sums over the sources are enough, as they are by
    default where nothing is asked of the sources, or the rule is an average or a sum."""
    needs_each_with: ClassVar[dict[str, str]] = {}
    """Options that, where they are on, need each source's answer by itself, and why."""
    compares: ClassVar[tuple[str, ...]] = ()
    """Logged values that compare single sources: with sums alone they say nothing."""
    rule: ClassVar[Rule] = ""
    """What the server does with the sources' models or updates: their average, a weighted sum with the target's, a
    projection of the target's on them; empty: something else."""
    work: ClassVar[str] = ""
    """What a round computes beyond local training and the server's rule, in words."""
    theory: ClassVar[str] = ""
    """Its rule in `theory/delta_error.py`; empty: the theory does not cover it."""
    baseline: ClassVar[bool] = False
    """True: a reference that the report draws beside other methods."""
    keeps: ClassVar[tuple[str, ...]] = ()
    """Where every client keeps its own model: the names in its memory that are this model. It is saved in the client's
    folder and evaluated there with `predictor`; `final` is then what they share."""
    parts: ClassVar[bool] = False
    """True: what is learned is more than the network; it is evaluated with `predictor`, made of theta.safetensors."""
    needs_sgd: ClassVar[dict[str, str] | None] = None
    """The choices with which its sources must train with plain SGD; {}: always; None: never. The configuration is
    checked before a run."""
    float16: ClassVar[bool] = True
    """False: it computes gradients outside the plain local training, where nothing scales a loss for float16."""
    needs_float32: ClassVar[dict[str, str] | None] = None
    """The choices with which rounding to less would spoil it, refused before a run; None: never."""
    synchronizations: ClassVar[int] = 0
    """How often, at most, the host waits for the GPU in a step of local training (`make test-gpu` counts it)."""
    length: ClassVar[int] = 1
    """How many times the study's rounds it runs."""
    state: ClassVar[type]
    """The type of its state, S."""

    def __init_subclass__(cls) -> None:
        (cls.state,) = get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]  # of Method[S]

    def asks(self) -> tuple[Step, ...]:
        """The steps that these options ask for; the clients' policies must allow them."""
        return self.steps

    def extra_parameters(self, sources: int, features: int, classes: int) -> int:
        """Trainable numbers beyond one network for each client, with this many sources, features and classes."""
        return 0

    def start(self, theta: Tensor) -> S:
        raise NotImplementedError

    def round(self, state: S, server: Server) -> S:
        raise NotImplementedError

    def final(self, state: S) -> Tensor:
        """What is learned: the model `x` of the state, unless a method says otherwise."""
        x: Tensor = state.x  # type: ignore[attr-defined]
        return x

    def named(self, final: Tensor, layout: Layout) -> dict[str, Tensor]:
        """What `final` is made of, by name: the content of a run's theta.safetensors."""
        return named_tensors(final, layout)

    def handover(self, final: Tensor, layout: Layout) -> Tensor:
        """What the next phase starts from: the network, without anything that a method puts behind it."""
        return final[: layout.size].clone()

    def predictor(self, network: nn.Module, kept: Mapping[str, Tensor]) -> nn.Module | None:
        """The module, made around the network, that predicts with what a client keeps, or with `named` of what is
        shared; None: not yet."""
        raise NotImplementedError


class OneModel(Method[Model]):
    """A method whose whole state is one model."""

    def start(self, theta: Tensor) -> Model:
        return Model(x=theta)


REGISTRY: dict[str, type[Method[Any]]] = {}


@dataclass_transform(frozen_default=True)
def method(
    name: str, title: str, paper: str, steps: tuple[Step, ...], **properties: Any
) -> Callable[[type[T]], type[T]]:
    """Register a method under its name in the configuration, with its properties, and freeze its fields."""
    if unknown := sorted(properties.keys() - Method.__annotations__):
        raise TypeError(f"{name}: a method has no property {', '.join(unknown)}")

    def register(cls: type[T]) -> type[T]:
        made: Any = dataclasses.dataclass(frozen=True)(cls)
        if name in REGISTRY:
            raise TypeError(f"two methods are called {name}")
        apart = properties.get("asks_sources") is False
        properties.setdefault("noised", apart or all(step.noised for step in steps))
        if apart or properties.get("rule") in ("average", "sum"):
            properties.setdefault("needs_each", "")
        for key, value in {"name": name, "title": title, "paper": paper, "steps": steps, **properties}.items():
            setattr(made, key, value)
        REGISTRY[name] = made
        return cls

    return register


def option(default: Any, help: str, low: float | None = None, high: float | None = None) -> Any:
    """A hyper-parameter with its meaning and bounds."""
    return dataclasses.field(default=default, metadata={"help": help, "low": low, "high": high})


def describe() -> dict[str, dict[str, Any]]:
    """Every method with its properties, options and messages: the content of catalog.json."""
    return {name: description(cls) for name, cls in sorted(REGISTRY.items())}


def description(cls: Any) -> dict[str, Any]:
    """One entry of the catalog."""
    hints = get_type_hints(cls)
    options = {}
    for field in dataclasses.fields(cls):
        entry: dict[str, Any] = {"help": field.metadata["help"], "default": field.default}
        entry |= _type_entry(hints[field.name])
        entry |= {k: field.metadata[k] for k in ("low", "high") if field.metadata[k] is not None}
        options[field.name] = entry
    keys = [key for key in Method.__annotations__ if key not in ("name", "steps", "state")]
    shown = {key: getattr(cls, key, getattr(Method, key, None)) for key in keys}
    own_models = bool(shown.pop("keeps"))
    return {
        "module": cls.__module__,
        **shown,
        "own_models": own_models,
        "options": options,
        "wire": [
            {"step": s.name, "to_hospital": kinds(s.question), "from_hospital": kinds(s.answer)} for s in cls.steps
        ],
    }


def _type_entry(hint: Any) -> dict[str, Any]:
    return (
        {"type": "choice", "choices": list(get_args(hint))} if get_origin(hint) is Literal else {"type": hint.__name__}
    )
