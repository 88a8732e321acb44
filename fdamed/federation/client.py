"""A hospital: its data, its model, its memory; and the one door through which questions come in."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import torch
from torch import Tensor

from fdamed.config.privacy import USUAL, Floor, local_steps
from fdamed.config.runs import Auxiliary
from fdamed.config.study import Recipe
from fdamed.core.errors import FdamedError
from fdamed.core.out_of_memory import telling_batch
from fdamed.core.rng import Stream, stream
from fdamed.federation.messages import WireError, decode, encode, kinds
from fdamed.models.flat import FlatModel

if TYPE_CHECKING:
    from fdamed.data.loader import Labeled, Unlabeled
    from fdamed.training.dp_sgd import Mechanism

TRAINED = frozenset({"weights", "update"})
"""Kinds that local steps have made."""


Role = Literal["source", "target"]


@dataclass
class Client:
    """What a step may see: this hospital and nothing else."""

    name: str
    data: Labeled | Unlabeled
    model: FlatModel
    recipe: Recipe
    seed: int
    release: frozenset[str]
    role: Role = field(kw_only=True)
    auxiliary: Auxiliary | None = None
    heads: FlatModel | None = None
    precision: str = "float32"
    smallest_batch: int = 16
    """The hospital's policy: no mean over the features of fewer images leaves it, whoever asks."""
    floor: Floor = USUAL
    """The hospital's policy: nothing leaves that was computed on fewer images, or made by fewer steps."""
    noise: Mechanism | None = None
    """The hospital's policy: its training is private, and no step looks at its images in another way."""
    account: Path | None = None
    """Where the cost of the noise is entered where the memory, which a resume sets back, will not do."""
    memory: dict[str, Tensor] = field(default_factory=dict)
    """The only thing that survives between questions."""
    rng: Stream = field(default_factory=lambda: Stream(0))
    """Set anew for each question."""


@dataclass(frozen=True)
class Step:
    """Something a method may ask a hospital to do: (client, question) -> answer."""

    name: str
    run: Callable[[Client, Any], Any]
    question: type
    answer: type
    draws: str
    """The name in its random streams: its own, or that of the step whose numbers it draws."""
    noised: bool = False
    """Whether all that it lets out has been through the noise where a hospital insists on it."""

    @property
    def lets_out(self) -> frozenset[str]:
        """Kinds of knowledge in the answer."""
        return frozenset(kinds(self.answer).values())


_STEPS: dict[str, Step] = {}


def step(
    name: str, *, draws: Step | None = None, noised: bool = False
) -> Callable[[Callable[[Client, Any], Any]], Step]:
    """Make a step of a function `(client: Client, ask: Question) -> Answer`; types come from its annotations.

    `name` is part of its random stream: it never changes, wherever the function moves. `draws`: the step whose random
    numbers it uses, so that methods that differ in one term train on the same batches. `noised`: it looks at images
    only by way of DP-SGD, or not at all.
    """

    def make(function: Callable[[Client, Any], Any]) -> Step:
        hints = get_type_hints(function, include_extras=True)
        answer = hints.pop("return")
        _, question = hints.values()
        if name in _STEPS:
            raise TypeError(f"two steps are called {name}")
        _STEPS[name] = Step(name, function, question, answer, draws.draws if draws else name, noised)
        return _STEPS[name]

    return make


def known_steps() -> tuple[Step, ...]:
    """Every step that was defined so far."""
    return tuple(_STEPS.values())


def refusal(step: Step, release: frozenset[str], name: str, method: str) -> FdamedError | None:
    """The error that a hospital's policy makes of a step, before anything runs or leaves; None: it is allowed."""
    withheld = sorted(step.lets_out - release)
    if not withheld:
        return None
    return FdamedError(
        f"{method} asks {name} in step {step.name} for {', '.join(withheld)}, which it does not release",
        f"hospital {name}",
        f"Choose another method or variant, or let {name} add {', '.join(withheld)} to privacy.release.",
    )


def insist(client: Client, step: Step) -> None:
    """Raise where the hospital's own policy forbids the answer, before it is computed."""
    if client.noise is not None and not step.noised:
        raise FdamedError(
            f"step {step.name} looks at images without the noise that {client.name} insists on",
            f"hospital {client.name}",
            "Choose a method that supports privacy.differential (docs/explanation/privacy.md), or leave it out.",
        )
    recipe = client.recipe
    enough(client, local_steps(len(client.data), recipe.batch, recipe.epochs) if step.lets_out & TRAINED else None)


def enough(client: Client, steps: int | None) -> None:
    """Raise where the hospital's images, or these local steps, are too few to let anything out."""
    refused = client.floor.refusal(client.name, len(client.data), steps)
    if refused:
        raise refused


def answer(client: Client, step: Step, round: int, nth: int, ask: Any) -> Any:
    """Run one step in the hospital, with the random numbers of this very question and the recipe of this round."""
    insist(client, step)
    client.rng = stream(client.seed, client.name, round, step.draws, nth)
    recipe, before = client.recipe, dict(client.memory)
    client.recipe = recipe.at(round)
    try:
        with telling_batch(step.name, f"hospital {client.name}", f"batch {recipe.batch}"):
            reply = step.run(client, ask)
        _keep_finite(client, before)
    except FdamedError:
        client.memory = before  # what a training that failed has left there must not be saved
        raise
    finally:
        client.recipe = recipe
    return reply


def _keep_finite(client: Client, before: dict[str, Tensor]) -> None:
    """Refuse to remember what is not finite: a loss can still be finite when the numbers behind it are not."""
    for name, value in client.memory.items():
        if value is not before.get(name) and value.is_floating_point() and not torch.isfinite(value.sum()):
            if bool(torch.isfinite(value).all()):
                continue
            raise FdamedError(
                f"what it would remember ({name}) is not finite at learning rate {client.recipe.lr}",
                f"hospital {client.name}",
                "Lower the learning rate of this side in `train`; the last checkpoint is kept.",
            )


def open_door(client: Client, method: str) -> Callable[[bytes], bytes]:
    """The hospital as a function from bytes to bytes."""

    def door(request: bytes) -> bytes:
        try:
            head, body = unpack(request)
            step, round, nth = _question(head)
            refused = refusal(step, client.release, client.name, method)
            if refused:
                raise refused
            ask: Any = decode(step.question, body, client.model.layout.size)
            return pack({"ok": True}, encode(answer(client, step, round, nth, ask)))
        except FdamedError as error:
            return pack({"ok": False, "error": [error.what, error.where, error.fix]}, b"")
        except WireError as error:
            return pack({"ok": False, "error": [str(error), f"hospital {client.name}", "Use the same fdamed."]}, b"")

    return door


def _question(head: dict[str, Any]) -> tuple[Step, int, int]:
    """Which step is asked for, in which round and for the how many-th time."""
    name, round, nth = head.get("step"), head.get("round"), head.get("nth")
    if not isinstance(name, str) or name not in _STEPS or type(round) is not int or type(nth) is not int:
        raise WireError("not a question that this hospital knows")
    return _STEPS[name], round, nth


def pack(head: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(head).encode()
    return struct.pack("<I", len(text)) + text + body


def unpack(data: bytes) -> tuple[dict[str, Any], memoryview]:
    view = memoryview(data)
    try:
        (n,) = struct.unpack("<I", view[:4])
        head: dict[str, Any] = json.loads(bytes(view[4 : 4 + n]))
    except (struct.error, ValueError, RecursionError):
        raise WireError("not a request") from None
    if not isinstance(head, dict):
        raise WireError("not a request")
    return head, view[4 + n :]
