"""The sources' part of a round: their updates, or their average, without those that cannot be of this training.

An unsound update is left out of its round by name, in the log and in the run's record; guard.py has the limits.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from fdamed.federation.client import Step
from fdamed.federation.method import Model
from fdamed.federation.server import Server
from fdamed.federation.validation.checks import Travel, Verdict, distances, judged, odd_shapes
from fdamed.federation.validation.directions import MAJORITY, Stretch, bearings, layer_cosines, limits, peers
from fdamed.federation.validation.replay import FEWEST
from fdamed.methods._shared.local_training import Moved, Trained, move_locally, train_locally
from fdamed.models.flat import Layout
from fdamed.ops.aggregation import cosines, mean

NOBODY = "nobody is left out for the direction of an update"
AGAINST = -0.5
"""The cosine of the whole model from which on the log says that a source points against the target."""


class Learner(Protocol):
    """An answer with a model x that was trained on n images."""

    @property
    def x(self) -> Tensor: ...
    @property
    def n(self) -> int: ...
    @property
    def loss(self) -> float: ...


class Moving(Protocol):
    """An answer with an update of the model, from n images."""

    @property
    def g(self) -> Tensor: ...
    @property
    def n(self) -> int: ...


L = TypeVar("L", bound=Learner)
R = TypeVar("R", bound=Moving)
T = TypeVar("T")


def source_average(server: Server, model: Model) -> Model:
    """sum_k n_k/n h_k over the sources that answered soundly; the model itself if none did."""
    return average_of(server, train_locally, model, model)


def average_of(server: Server, step: Step, model: Model, question: Any) -> Model:
    """The same for another way to train locally from the model, asked by `question`."""
    h: dict[str, Trained] = sound_models(server, step, model.x, server.ask_all(server.sources, step, question))
    if not h:
        return model
    note_loss(server, h)
    return Model(x=mean([r.x for r in h.values()], [r.n for r in h.values()]))


def note_loss(server: Server, h: Mapping[str, Learner]) -> None:
    """Keep the sources' mean loss, by images, for the metrics of the round."""
    server.notes["train/loss"] = sum(r.n * r.loss for r in h.values()) / sum(r.n for r in h.values())


def sound_models(server: Server, step: Step, x: Tensor, h: Mapping[str, L], also: Sequence[str] = ()) -> dict[str, L]:
    """The models that can have been trained from x; the others are left out of the round by name.

    `also`: further parts of the answer that go into a rule, each measured by its length.
    """
    kept = dict(h)
    for part in also:
        kept = sound_parts(server, step, kept, part)
    cut = server.layout.trainable
    vectors = [r.x for r in kept.values()]
    kept = _sound_buffers(server, step, kept, distances([v[cut:] for v in vectors], x[cut:]))
    lengths = dict(zip(kept, distances([r.x for r in kept.values()], x[:cut]), strict=True))
    kept = _moved(server, step, kept, lengths)
    verdict = sound(server, step, _travels(kept, [lengths[k] for k in kept]), length(x[:cut]))
    kept = _left(kept, verdict)
    kept = _unopposed(server, step, kept, "x", [r.x[:cut] for r in kept.values()], x[:cut], server.layout.stretches)
    for client, factor in verdict.factors.items():
        if client in kept:
            server.shorten(client, step, factor)
            shorter = kept[client].x.clone()
            shorter[:cut] = torch.lerp(x[:cut], shorter[:cut], factor)
            kept[client] = dataclasses.replace(kept[client], x=shorter)  # type: ignore[type-var]  # messages are records
    return kept


def source_moves(server: Server, model: Model, target: Moved) -> dict[str, Moved]:
    """The updates of the sources that answered soundly, judged beside the target's."""
    return sound_moves(
        server, move_locally, model.x, server.ask_all(server.sources, move_locally, model), target=target
    )


def sound_moves(
    server: Server, step: Step, x: Tensor, s: Mapping[str, R], also: Sequence[str] = (), target: Moved | None = None
) -> dict[str, R]:
    """The answers whose update of x can be of this training; the others are left out of the round by name."""
    kept = dict(s)
    for part in also:
        kept = sound_parts(server, step, kept, part)
    cut = server.layout.trainable
    kept = _sound_buffers(server, step, kept, [length(r.g[cut:]) for r in kept.values()])
    travels = _travels(kept, [length(r.g[:cut]) for r in kept.values()])
    own = Travel(length(target.g[:cut]), target.n, target.reach) if target else None
    verdict = sound(server, step, travels, length(x[:cut]), own)
    kept = _left(kept, verdict)
    kept = _unopposed(server, step, kept, "g", [r.g[:cut] for r in kept.values()], None, server.layout.stretches)
    for client, factor in verdict.factors.items():
        if client in kept:
            server.shorten(client, step, factor)
            shorter = kept[client].g.clone()
            shorter[:cut] *= factor
            kept[client] = dataclasses.replace(kept[client], g=shorter)  # type: ignore[type-var]  # messages are records
    return kept


def sound_parts(
    server: Server,
    step: Step,
    h: Mapping[str, T],
    part: str,
    like: Tensor | None = None,
    start: Tensor | None = None,
    layout: Layout | None = None,
    size: float = 0.0,
    shorten: bool = True,
    directed: bool = True,
    still: bool = True,
) -> dict[str, T]:
    """The answers whose `part` can be of this training; the others are left out of the round by name.

    It has the shape of `like` (None: of most), no negative running variance where it is a module of this `layout`, and
    goes no further from `start` (None: from zero) than the parts of the others do, in a model of length `size`; where
    it goes a little too far it is shortened, unless the hospital goes on with what it sent (`shorten` is false). Its
    direction is held against the others' unless honest ones may differ in it (`directed` is false). All zero is a
    hospital that has not moved, unless the part is none that could be (`still` is false).
    """
    values: dict[str, Tensor] = {client: getattr(r, part) for client, r in h.items()}
    kept = _left(h, _named(server, step, Verdict(odd_shapes(values, like))))
    if layout is not None:
        negative = [p for p in kept if len(values[p]) and bool((values[p][layout.variances] < 0.0).any())]
        why = f"its part {part} has a negative running variance"
        kept = _left(kept, _named(server, step, Verdict(dict.fromkeys(negative, why))))
    moved = {p: values[p].flatten() if start is None else values[p] - start for p in kept}
    counts = [max(1, getattr(r, "n", 1)) for r in kept.values()]
    travels = {p: Travel(length(moved[p]), n, n) for p, n in zip(kept, counts, strict=True)}
    if not still:
        empty = [p for p, t in travels.items() if t.idle]
        kept = _left(kept, _named(server, step, Verdict(dict.fromkeys(empty, f"its part {part} is all zero"))))
        travels = {p: travels[p] for p in kept}
    verdict = sound(server, step, travels, size, subject=f"its part {part} is")
    kept = _left(kept, verdict)
    if directed:
        kept = _unopposed(server, step, kept, part, [moved[p] for p in kept])
    for client, factor in verdict.factors.items() if shorten else ():
        if client in kept:
            server.shorten(client, step, factor)
            shorter = values[client] * factor if start is None else torch.lerp(start, values[client], factor)
            kept[client] = dataclasses.replace(kept[client], **{part: shorter})  # type: ignore[type-var]  # as above
    return kept


def sound_norms(server: Server, step: Step, h: Mapping[str, L], name: str) -> dict[str, L]:
    """The answers whose norm of this name is not far above the others'; a negative one is none, and no fault."""
    travels = {k: Travel(getattr(r, name), max(1, r.n), max(1, r.n)) for k, r in h.items() if getattr(r, name) >= 0.0}
    return _left(h, sound(server, step, travels, 0.0, subject=f"its {name} is"))


def sound(
    server: Server,
    step: Step,
    travels: Mapping[str, Travel],
    size: float,
    target: Travel | None = None,
    subject: str = "it is",
) -> Verdict:
    """The verdict on updates of a model of length `size`; who cannot be of this training is left out by name."""
    return _named(server, step, judged(travels, target, size, server.guard, subject))


def _sound_buffers(server: Server, step: Step, h: Mapping[str, T], lengths: Sequence[float]) -> dict[str, T]:
    """The answers whose running statistics have moved no further than those of the others; they are not shortened."""
    return _left(h, sound(server, step, _travels(h, lengths), 0.0, subject="the change of its running statistics is"))


def length(v: Tensor) -> float:
    return float(torch.linalg.vector_norm(v))


def _travels(h: Mapping[str, Any], lengths: Sequence[float]) -> dict[str, Travel]:
    return {k: Travel(v, r.n, getattr(r, "reach", r.n)) for (k, r), v in zip(h.items(), lengths, strict=True)}


def _named(server: Server, step: Step, verdict: Verdict, strike: bool = True) -> Verdict:
    for client, why in verdict.faults.items():
        server.reject(client, step, why, strike)
    if verdict.faults:
        server.hold_quorum()
    return verdict


def _left(h: Mapping[str, T], verdict: Verdict) -> dict[str, T]:
    return {k: r for k, r in h.items() if k not in verdict.faults}


def _moved(server: Server, step: Step, h: dict[str, T], lengths: Mapping[str, float]) -> dict[str, T]:
    """Without those who have not moved where others have: their share of a mean of models would hold it back.

    It is no strike. In a model of a few numbers an honest hospital may begin at its very optimum.
    """
    idle = [client for client in h if lengths[client] == 0.0]
    if server.layout.trainable < FEWEST or len(idle) in (0, len(h)):
        return h
    return _left(h, _named(server, step, Verdict(dict.fromkeys(idle, "it has not moved")), strike=False))


def _unopposed(
    server: Server,
    step: Step,
    h: dict[str, T],
    part: str,
    vectors: list[Tensor],
    x: Tensor | None = None,
    layers: Sequence[Stretch] = (),
) -> dict[str, T]:
    """Without those whose change of the parameters x (None: from zero) points against the others with like label rates.

    As a whole or in one of the `layers`. Such a hospital may be honest: it is left out of this round, and no nearer to
    quarantine.
    """
    limit, within, names = server.guard.opposed, server.guard.alike, list(h)
    if limit is None or not names or not len(vectors[0]):
        return h
    if within is not None and not server.shares:
        if len(names) > MAJORITY:
            server.remark(f"no label rates are declared: {NOBODY} (train.validation.alike)")
        return h
    others, found = peers(names, server.shares, within), {}
    if max(map(len, others)) >= MAJORITY:
        cos = layer_cosines(vectors, layers, x)
        found = {names[i]: bearing for i, bearing in bearings(cos, others).items()}
    offenders = server.bearings.still(step.name, part, [name for name in names if name not in found])
    offenders += server.bearings.opposed(server.round, step.name, part, found, limits(limit, layers, len(vectors[0])))
    why = "it points against the others" if within is None else "it points against those with label rates like its own"
    return _left(h, _named(server, step, Verdict(dict.fromkeys(offenders, why)), strike=False))


def tell_opponents(server: Server, sources: Sequence[str], dot: Tensor, ss: Tensor, tt: Tensor) -> None:
    """Say once a round which sources' updates, as a whole, point against the target's; products are (N, L) and (L,)."""
    cos = cosines(dot.sum(1), ss.sum(1), tt.sum()).tolist()
    against = [f"{name} (cosine {c:.2f})" for name, c in zip(sources, cos, strict=True) if c < AGAINST]
    if against:
        print(f"round {server.round}: against {server.target}: {', '.join(against)}", file=sys.stderr, flush=True)
