"""Figure 2 of the FedGP paper: which rule wins, by theory and by training, over pairs of synthetic data sets.

D_1 ... D_9 share x (5,000 points in R^50 from a mixture of 10 Gaussians); y in R^10 mixes 100 radial basis functions
whose centers and widths drift away from those of D_1, the target. The target has 9 labeled subsets of falling size.
One hidden layer of sigmoids, full-batch gradient descent with momentum.
The paper gives the counts; what it leaves open (ranges, step size, steps) is in `Setting`.
`python -m benchmarks.fedgp_figure2 --small --out figure2/` writes figure2.json and figure2.svg.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from fdamed.core.files import write_json, write_text
from fdamed.core.rng import stream
from fdamed.report.plots.decision_map import AXES, RULES, TITLE
from fdamed.report.plots.figure import standalone
from fdamed.report.plots.heat import Cell as HeatCell
from fdamed.report.plots.heat import Panel, heat
from fdamed.theory.bounds import fedda_error, fedgp_error, four_errors, winner

PAPER = {"beta": 0.5, "delta": 1.0, "tau2": 0.5, "m": 10.0}
"""The setting of Figure 2, left."""
SIMPLE = ("source_only", "fedda", "fedgp", "target_only")
"""The four rules of Figure 2, in the order in which they win as the distance grows."""


@dataclass(frozen=True)
class Setting:
    """The synthetic study; the defaults are the paper's counts."""

    points: int = 5000
    dimension: int = 50
    outputs: int = 10
    gaussians: int = 10
    bases: int = 100
    hidden: int = 100
    shifts: tuple[float, ...] = tuple(round(0.07 * i, 2) for i in range(9))
    sizes: tuple[int, ...] = (2500, 1320, 700, 370, 195, 103, 54, 29, 15)
    beta: float = 0.5
    per_layer: bool = True
    """Project weights and biases of each layer by themselves, as the authors' experiments do; or all at once."""
    lr: float = 0.004
    momentum: float = 0.9
    steps: int = 300
    seed: int = 0


SMALL = Setting(points=400, bases=20, hidden=16, shifts=(0.0, 0.14, 0.56), sizes=(200, 40, 8), steps=40)
"""A small version for a first look and for tests."""


@dataclass(frozen=True)
class Cell:
    """One pair of data sets: errors that the theory predicts at the first weights, and losses after training."""

    shift: float
    size: int
    sigma2: float
    d2: float
    tau2: float
    delta: float
    norm2: float
    along2: float
    errors: dict[str, float]
    """Delta^2 of each rule with the measured tau, delta and projected variance."""
    errors_paper: dict[str, float]
    """Delta^2 with the paper's tau^2 = 0.5, delta = 1, m = 10."""
    losses: dict[str, float]
    """Mean squared error on the target's other points after training."""


def data_sets(s: Setting) -> tuple[Tensor, list[Tensor]]:
    """x (n, d), and y (n, o) for each shift; the first shift is the target's."""
    rng = stream(s.seed, "figure2", "data").numpy
    centers = rng.uniform(-0.5, 0.5, (s.gaussians, s.dimension))
    x = rng.normal(size=(s.points, s.dimension)) + centers[np.arange(s.points) % s.gaussians]
    mix, offset = rng.uniform(-0.5, 0.5, (s.outputs, s.bases)), rng.uniform(-0.5, 0.5, s.outputs)
    mu, width = rng.uniform(-0.5, 0.5, (s.bases, s.dimension)), rng.uniform(0, 100, s.bases)
    drift, widening = rng.uniform(0, 1, mu.shape), rng.uniform(0, 100, s.bases)
    ys = []
    for shift in s.shifts:
        m, w = mu + shift * drift, width + shift * widening
        apart = (x**2).sum(1)[:, None] - 2 * x @ m.T + (m**2).sum(1)[None]
        ys.append(torch.from_numpy(np.exp(-apart / w) @ mix.T + offset).float())
    return torch.from_numpy(x).float(), ys


def first_weights(s: Setting) -> Tensor:
    """Uniform in (-0.5, 0.5), as one vector."""
    generator = stream(s.seed, "figure2", "init").torch
    return torch.rand(sum(_sizes(s)), generator=generator) - 0.5


def loss(theta: Tensor, x: Tensor, y: Tensor, s: Setting) -> Tensor:
    """Mean over the points of |y^ - y|^2, of a network with one hidden layer of sigmoids."""
    w1, b1, w2, b2 = theta.split(_sizes(s))  # type: ignore[no-untyped-call]
    hidden = torch.addmm(b1, x, w1.view(s.hidden, s.dimension).t()).sigmoid()
    return (torch.addmm(b2, hidden, w2.view(s.outputs, s.hidden).t()) - y).square().sum(1).mean()


def _sizes(s: Setting) -> tuple[int, int, int, int]:
    """Numbers in W1 (h, d), b1 (h,), W2 (o, h) and b2 (o,)."""
    return s.hidden * s.dimension, s.hidden, s.outputs * s.hidden, s.outputs


def mean_gradient(theta: Tensor, x: Tensor, y: Tensor, s: Setting) -> Tensor:
    """Gradient (P,) of the loss."""
    gradient: Tensor = grad(loss)(theta, x, y, s)
    return gradient


def scatter(theta: Tensor, x: Tensor, y: Tensor, u: Tensor, s: Setting) -> tuple[float, float]:
    """Variance of one point's gradient around the mean, whole and along the unit vector u: (tr Sigma, u' Sigma u)."""
    of_each = vmap(lambda a, b: grad(loss)(theta, a[None], b[None], s), chunk_size=250)
    g = of_each(x, y)
    along: Tensor = (g @ u).double()
    square = sum(float(part.double().square().sum()) for part in g.split(250))
    mean = mean_gradient(theta, x, y, s).double()
    return square / len(x) - float(mean @ mean), float(along.var(correction=0))


Step = Callable[[Tensor, Tensor], Tensor]
"""(gradient of the target, of the source) -> the aggregated gradient."""


def project(s: Setting) -> Step:
    """FedGP with Setting's beta, tensor by tensor or at once."""
    sizes = _sizes(s) if s.per_layer else (sum(_sizes(s)),)

    def rule(g_t: Tensor, g_s: Tensor) -> Tensor:
        out = []
        for t, g in zip(g_t.split(sizes), g_s.split(sizes), strict=True):  # type: ignore[no-untyped-call]
            norm2 = g @ g
            share = (t @ g).clamp(min=0.0) / norm2 if norm2 > 0 else norm2
            out.append((1 - s.beta) * t + s.beta * share * g)
        return torch.cat(out)

    return rule


def trained(s: Setting, x: Tensor, target: tuple[Tensor, Tensor] | None, source: Tensor | None, rule: Step) -> Tensor:
    """The weights after training on a labeled subset of the target, a source's y, or both."""
    theta = first_weights(s)
    speed, nothing = torch.zeros_like(theta), torch.zeros(0)
    for _ in range(s.steps):
        g_t = mean_gradient(theta, target[0], target[1], s) if target else nothing
        g_s = mean_gradient(theta, x, source, s) if source is not None else nothing
        speed.mul_(s.momentum).add_(rule(g_t, g_s))
        theta.add_(speed, alpha=-s.lr)
    return theta


def study(s: Setting) -> list[Cell]:
    """All pairs: the theory at the first weights, and four trainings each."""
    x, ys = data_sets(s)
    theta, y_t = first_weights(s), ys[0]
    order = torch.from_numpy(stream(s.seed, "figure2", "subsets").numpy.permutation(s.points))
    g_t = mean_gradient(theta, x, y_t, s).double()
    alone = {n: trained(s, x, (x[order[:n]], y_t[order[:n]]), None, lambda t, _: t) for n in s.sizes}
    cells = []
    for shift, y_s in zip(s.shifts, ys, strict=True):
        others = trained(s, x, None, y_s, lambda _, g: g)
        g_s = mean_gradient(theta, x, y_s, s).double()
        u = g_s / g_s.norm()
        whole, projected = scatter(theta, x, y_t, u.float(), s)
        for n in s.sizes:
            rows, rest = order[:n], order[n:]
            subset = x[rows], y_t[rows]
            da = trained(s, x, subset, y_s, lambda t, g: (1 - s.beta) * t + s.beta * g)
            gp = trained(s, x, subset, y_s, project(s))
            models = {"source_only": others, "fedda": da, "fedgp": gp, "target_only": alone[n]}
            losses = {name: float(loss(model, x[rest], y_t[rest], s)) for name, model in models.items()}
            drawn = (1.0 - n / s.points) / n * s.points / (s.points - 1)  # without replacement
            cells.append(_cell(s, shift, n, g_t, g_s, whole * drawn, projected * drawn, losses))
    return cells


def _cell(
    s: Setting, shift: float, n: int, g_t: Tensor, g_s: Tensor, sigma2: float, along2: float, losses: dict[str, float]
) -> Cell:
    u = g_s / g_s.norm()
    along = float(g_t @ u)
    norm2, d2 = float(g_t @ g_t), float((g_t - g_s) @ (g_t - g_s))
    beside2 = max(norm2 - along**2, 0.0)
    tau2 = min(beside2 / d2, 1.0) if d2 > 0 else 0.0
    spread = max(along2, 1e-300) ** 0.5
    delta = float(torch.special.ndtr(torch.tensor(along / spread, dtype=torch.float64)))
    measured = {
        "source_only": d2,
        "fedda": fedda_error(s.beta, sigma2, d2),
        "fedgp": fedgp_error(s.beta, sigma2, d2, tau2, delta, norm2, along2),
        "target_only": sigma2,
    }
    paper = four_errors(sigma2, d2, **(PAPER | {"beta": s.beta}))
    return Cell(shift, n, sigma2, d2, tau2, delta, norm2, along2, measured, paper, losses)


def summary(cells: list[Cell]) -> dict[str, object]:
    """Agreement of the theory's winner with training's in percent, and the relative loss of the theory's choice."""
    actual = [winner(c.losses) for c in cells]
    out: dict[str, object] = {"cells": len(cells), "wins": {rule: actual.count(rule) for rule in SIMPLE}}
    for name, errors in (("measured", "errors"), ("paper", "errors_paper")):
        predicted = [winner(getattr(c, errors)) for c in cells]
        cost = [c.losses[p] / min(c.losses.values()) for c, p in zip(cells, predicted, strict=True)]
        out[name] = {
            "agreement_percent": 100.0 * sum(a == p for a, p in zip(actual, predicted, strict=True)) / len(cells),
            "within_5_percent_of_the_best": 100.0 * sum(v <= 1.05 for v in cost) / len(cells),
            "median_loss_ratio": float(np.median(cost)),
            "worst_loss_ratio": max(cost),
            "wins": {rule: predicted.count(rule) for rule in SIMPLE},
        }
    out["always"] = {rule: 100.0 * actual.count(rule) / len(cells) for rule in SIMPLE}
    return out


PANELS = {
    "theory, measured at the first weights": "errors",
    "theory, τ² = 0.5, δ = 1, m = 10": "errors_paper",
    "training: smallest test loss": "losses",
}
"""Title -> field of a cell whose smallest value wins."""
SHORT = {"source_only": "source", "fedda": "DA", "fedgp": "GP", "target_only": "target"}


def plot(s: Setting, cells: list[Cell]) -> str:
    """Maps of winning rules side by side: rows by distance, columns by variance."""
    by = {(c.shift, c.size): c for c in cells}
    rows = [f"{by[shift, s.sizes[0]].d2 ** 0.5:.1f}" for shift in reversed(s.shifts)]
    columns = [f"{by[s.shifts[0], size].sigma2 ** 0.5:.1f}" for size in s.sizes]
    made = []
    for name, errors in PANELS.items():
        won = [[winner(getattr(by[shift, size], errors)) for size in s.sizes] for shift in reversed(s.shifts)]
        made.append(Panel(name, [[HeatCell(RULES[r], 0.5, TITLE[r], SHORT[r]) for r in line] for line in won], columns))
    words = "Rows: source-target distance (d); columns: target variance (σ)."
    title = "Which rule wins, by theory and by training"
    return standalone(heat(made, rows, title, (52, 34), words, " by ".join(reversed(AXES))))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where figure2.json and figure2.svg go")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="3 x 3 pairs of small data sets: seconds, a first look")
    parser.add_argument("--whole", action="store_true", help="project the whole model at once, not tensor by tensor")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)  # the matrices are small
    setting = replace(SMALL if arguments.small else Setting(), seed=arguments.seed, per_layer=not arguments.whole)
    cells = study(setting)
    found = summary(cells)
    write_text(arguments.out / "figure2.svg", plot(setting, cells))
    content = {"setting": asdict(setting), "summary": found, "cells": [asdict(c) for c in cells]}
    write_json(arguments.out / "figure2.json", content)
    for kind in ("measured", "paper"):
        print(f"{kind}: {found[kind]}")


if __name__ == "__main__":
    main()
