"""A client (hospital): data, model, state and privacy policy. To the server it is a function from bytes to bytes."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import torch
from torch import Tensor, nn

from fdamed.config.privacy import DEFAULT_MINIMUM, Minimum, local_steps
from fdamed.config.runs import Auxiliary
from fdamed.config.study import Recipe
from fdamed.core.errors import FdamedError, memory_error
from fdamed.core.rng import Stream, stream
from fdamed.federation.messages import PROTOCOL, check_exchange, kinds
from fdamed.federation.storage.answers import Answers, Took
from fdamed.models.flat import FlatModel

if TYPE_CHECKING:
    from fdamed.data.loader import Labeled, Unlabeled
    from fdamed.federation.secure_sums.certificates import Certificates
    from fdamed.training.dp_sgd import Mechanism

TRAINED = frozenset({"weights", "update"})
"""Kinds that are the result of local steps."""
Role = Literal["source", "target"]


@dataclass
class Client:
    """What a step may use: this client's own data, model, state and random numbers."""

    name: str
    data: Labeled | Unlabeled
    model: FlatModel
    recipe: Recipe
    seed: int
    release: frozenset[str]
    """Privacy policy: the kinds of values that the client may send."""
    role: Role = field(kw_only=True)
    auxiliary: Auxiliary | None = None
    heads: FlatModel | None = None
    precision: str = "float32"
    smallest_batch: int = 16
    """Privacy policy: the minimum number of images behind a mean of features."""
    minimum: Minimum = DEFAULT_MINIMUM
    """Privacy policy: the minimum numbers of images and local steps behind anything that is sent."""
    sums_only: bool = False
    """Privacy policy: as a source it sends masked answers, of which the server learns only sums."""
    certificates: Certificates | None = None
    """What its keys are signed with, and those of others checked; None: the clients are on one machine."""
    noise: Mechanism | None = None
    """Privacy policy: local training is differentially private, and no step uses the images in another way."""
    account: Path | None = None
    """The file with the privacy budget spent, where the noise is secure and a resume must not reset it."""
    memory: dict[str, Tensor] = field(default_factory=dict)
    """The state: all that is kept from one question to the next."""
    rng: Stream = field(default_factory=lambda: Stream(0))
    """Set anew for each question."""
    round: int = 0
    """That of the last question."""
    answers: Answers | None = None
    """Answers that this client remembers; None: it computes each."""
    remembered: Took | None = None
    """The time that the last answer took, where it was remembered; None: it was computed."""

    def local_steps(self, epochs: int | None = None) -> int:
        """Steps of local training for so many epochs; None: the recipe's."""
        recipe = self.recipe if epochs is None else self.recipe.model_copy(update={"epochs": epochs})
        return local_steps(len(self.data), recipe)

    def with_recipe(self, **changes: Any) -> Client:
        """The same client, state included, with these changes of its recipe."""
        return replace(self, recipe=self.recipe.model_copy(update=changes))

    def frozen(self, x: Tensor) -> nn.Module:
        """A second network with the weights x, to compare with: in evaluation mode and without gradients."""
        other = FlatModel(copy.deepcopy(self.model.module), self.model.theta.device)
        other.load(x)
        return other.module.eval().requires_grad_(False)


@dataclass(frozen=True)
class Step:
    """A function that a method may ask a client to run: (client, question) -> answer."""

    name: str
    run: Callable[[Client, Any], Any]
    question: type
    answer: type
    draws: str
    """The name in its random streams: its own, or that of the step whose random numbers it shares."""
    noised: bool = False
    """Whether it uses images only through DP-SGD where the client's policy requires it."""
    steps: Callable[[Client, Any], int | None] | None = None
    """The fewest local steps behind an answer, where they are not those of the client's epochs."""
    batch_means: bool = False
    """Whether it prepares or sends means of features over a batch."""
    public: bool = False
    """Whether its answer follows from settings and numbers that the server knows."""
    inner: Step | None = None
    """The step whose answer it masks, so that the server learns only the sum of the answers."""

    @cached_property
    def released_kinds(self) -> frozenset[str]:
        """Kinds of the values in the answer."""
        return frozenset(kinds((self.inner or self).answer).values()) - PROTOCOL

    @property
    def hidden(self) -> bool:
        """Whether secure aggregation hides its answers: not counts, and not what the server knows."""
        return bool(self.released_kinds - {"count"}) and not self.public


STEPS: dict[str, Step] = {}
"""Every step that was defined so far, by name."""


def step(
    name: str,
    *,
    draws: Step | None = None,
    noised: bool = False,
    steps: Callable[[Client, Any], int | None] | None = None,
    batch_means: bool = False,
    public: bool = False,
) -> Callable[[Callable[[Client, Any], Any]], Step]:
    """Make a step of a function `(client: Client, ask: Question) -> Answer`; types come from its annotations.

    `name` is part of its random stream and never changes, wherever the function moves. `draws`: the step whose random
    numbers it uses, so that methods that differ in one term train on the same batches. `noised`: it uses images only
    through DP-SGD, or not at all. `steps`: the fewest local steps behind its answer, if not those of the epochs.
    `batch_means`: it prepares or sends means of features over a batch, which the policy wants over enough images.
    `public`: its answer follows from settings and numbers that the server knows.
    """

    def make(function: Callable[[Client, Any], Any]) -> Step:
        hints = get_type_hints(function, include_extras=True)
        answer = hints.pop("return")
        _, question = hints.values()
        if name in STEPS:
            raise TypeError(f"two steps are called {name}")
        check_exchange(name, question, answer)
        drawn = draws.draws if draws else name
        STEPS[name] = Step(name, function, question, answer, drawn, noised, steps, batch_means, public)
        return STEPS[name]

    return make


def find_step(name: str) -> Step | None:
    """The step of this name; the steps of secure aggregation are defined when they are first asked for."""
    if name not in STEPS:
        from fdamed.federation.secure_sums.client_steps import MASKED, masked

        inner = STEPS.get(name.removesuffix(MASKED))
        return masked(inner) if inner and name.endswith(MASKED) else inner
    return STEPS[name]


def check_release(step: Step, release: frozenset[str], client: str, method: str) -> None:
    """Raise if a step would send kinds that a client's privacy policy does not release."""
    if withheld := ", ".join(sorted(step.released_kinds - release)):
        raise FdamedError(
            f"{method} asks {client} in step {step.name} for {withheld}, which it does not release",
            f"hospital {client}",
            f"Choose another method or variant, or let {client} add {withheld} to privacy.release.",
        )


def check_policy(client: Client, step: Step, ask: Any) -> None:
    """Raise if the client's privacy policy forbids the answer to a step, before anything is computed."""
    check_release(step, client.release, client.name, "the server")
    if client.sums_only and client.role == "source" and step.hidden and not step.inner:
        raise FdamedError(
            f"step {step.name} would show the answer of {client.name} alone, whose privacy policy lets out sums",
            f"hospital {client.name}",
            "Set privacy.secure_aggregation in the study, too, or choose a method that allows it.",
        )
    if client.noise is not None and not step.noised:
        raise FdamedError(
            f"step {step.name} uses images without the noise that the privacy policy of {client.name} requires",
            f"hospital {client.name}",
            "Choose a method that supports privacy.differential (docs/explanation/privacy.md), or leave it out.",
        )
    check_minimum(client, client.local_steps() if step.released_kinds & TRAINED else None)
    if step.steps:
        check_minimum(client, step.steps(client, ask))
    if step.batch_means:
        _check_batch(client)


def _check_batch(client: Client) -> None:
    """Raise if a mean over a batch has too few images: over one, exp(i Omega x) gives x by least squares."""
    images, limit = min(len(client.data), client.recipe.batch), max(1, client.smallest_batch)
    if images < limit:
        raise FdamedError(
            f"a mean over {images} images would be sent, fewer than {limit} (its privacy.smallest_batch): whoever "
            "knows the seed can turn a mean over one image back into its features exactly, and one over few nearly so",
            f"hospital {client.name}",
            f"Use batches of {limit} images or more, or exclude this hospital; it decides what is enough with "
            "privacy.smallest_batch.",
        )


def check_minimum(client: Client, steps: int | None) -> None:
    """Raise if the client's images, or these local steps, are fewer than the minimum of its privacy policy."""
    if error := client.minimum.refusal(client.name, len(client.data), steps):
        raise error


def check_one_pass(client: Client) -> None:
    """Raise if one pass over the images has too few steps: for a mean gradient, which counts as the steps of a pass."""
    check_minimum(client, client.local_steps(epochs=1))


def answer(client: Client, step: Step, round: int, nth: int, ask: Any) -> Any:
    """Run a step for the nth time in a round, with random numbers of its own and this round's learning rate."""
    check_policy(client, step, ask)
    recipe, before = client.recipe, dict(client.memory)
    client.rng, client.round = stream(client.seed, client.name, round, step.draws, nth), round
    if recipe.decay:
        client.recipe = recipe.at(round)
    try:
        reply = remembered_or_computed(client, step, ask, before)
    except Exception as error:
        client.memory = before  # a failed step must leave nothing that could be saved
        if exhausted := memory_error(error, step.name, f"hospital {client.name}", f"batch {recipe.batch}"):
            raise exhausted from None
        raise
    finally:
        client.recipe = recipe
    return reply


def remembered_or_computed(client: Client, step: Step, ask: Any, before: dict[str, Tensor]) -> Any:
    """The answer, and the state after it in the client's memory."""
    store, client.remembered = client.answers, None
    key = store.key(client, step, ask) if store else None
    if store and key and (found := store.find(key, step, before, client.model.layout.size)):
        reply, client.memory, client.remembered = found
        return reply
    begin, used = time.perf_counter(), time.process_time()
    reply = step.run(client, ask)
    _check_finite(client, before)
    if store and key:
        took = Took(time.perf_counter() - begin, time.process_time() - used)
        store.keep(key, reply, before, client.memory, took)
    return reply


def _check_finite(client: Client, before: dict[str, Tensor]) -> None:
    """Raise if the step has put numbers into the state that are not finite: the loss alone does not show them."""
    changed = {k: v for k, v in client.memory.items() if v is not before.get(k) and v.is_floating_point()}
    for name, value in changed.items():
        if not torch.isfinite(value.sum()) and not torch.isfinite(value).all():
            raise FdamedError(
                f"the state ({name}) is not finite at learning rate {client.recipe.lr}",
                f"hospital {client.name}",
                "Lower the learning rate of this side in `train`; the last checkpoint is kept.",
            )
