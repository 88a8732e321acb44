"""All pairs of a set of feature files and every classical method (`fdamed classical-benchmark FOLDER`).

Three accuracies for each pair and method: `default` (fixed settings), `chosen` (reverse validation, no target labels)
and `oracle` (the best of the grid on the target's own labels: not an estimate of anything, shown because paper 002
reports the best of its search in that way). Published figures stand beside them where there are any.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fdamed.classical.coral import CORAL
from fdamed.classical.dann import DaNN
from fdamed.classical.feature_files import FeatureSet
from fdamed.classical.gfk import GFK
from fdamed.classical.inputs import Array, Shrunk
from fdamed.classical.jda import JDA
from fdamed.classical.selection import Candidate, Fitted, Tried, Unaligned, View, chosen, fitted, tried
from fdamed.classical.tca import RFTCA, RTCA, TCA

COLUMNS = ("default", "chosen", "oracle", "published")
SIZES = (100, 30)
GAMMAS = (1.0, 1e-3)
VIEWS = tuple(View(m, center, True, equal) for equal in (False, True) for center in (False, True) for m in SIZES)
"""The first is the default: m = 100, not centered, scale `penalty`, samples at length 1."""
SYMMETRIC = frozenset({
    "TCA", "R-TCA", "RF-TCA (gaussian)", "RF-TCA (N = 1000)", "RF-TCA (laplacian)", "RF-TCA (cauchy)", "GFK",
})  # fmt: skip
"""Methods that do not know which domain is the source: one fit serves both directions."""


def methods() -> dict[str, list[Candidate]]:
    """Method -> the settings that are tried; the first candidate's first view is the default.

    TCA, R-TCA and RF-TCA are fitted once at the scale `penalty`; the views turn it into `variance` (equal) and take
    fewer components, because the components of a fit are nested.
    """
    return {
        "not aligned": [Candidate("as they are", Unaligned())],
        "TCA": [c for kernel in ("gaussian", "linear") for c in _spectral(TCA, f"{kernel} ", kernel=kernel)],
        "R-TCA": _spectral(RTCA),
        "RF-TCA (gaussian)": _spectral(RFTCA),
        "RF-TCA (N = 1000)": _spectral(RFTCA, N=1000),
        "RF-TCA (laplacian)": _spectral(RFTCA, kernel="laplacian"),
        "RF-TCA (cauchy)": _spectral(RFTCA, kernel="cauchy"),
        "CORAL": [
            Candidate(
                f"ridge={r:g}{' centered' if c else ''}", CORAL(ridge=r, center=c), (View(), View(unit_norm=True))
            )
            for c in (False, True)
            for r in (1.0, 10.0)
        ],
        "JDA": [
            Candidate(f"{kernel} kernel m={m}", JDA(m, kernel=kernel))
            for kernel in ("linear", "gaussian")
            for m in SIZES
        ],
        "GFK": [Candidate(f"k={k}", GFK(k)) for k in (20, 40)],
        "DaNN": [Candidate("weight=0.25", DaNN())],
    }


def _spectral(estimator: type, name: str = "", **settings: object) -> list[Candidate]:
    return [
        Candidate(f"{name}gamma={g:g}", estimator(gamma=g, n_components=SIZES[0], scale="penalty", **settings), VIEWS)
        for g in GAMMAS
    ]


@cache
def published(name: str) -> dict[str, Any]:
    """{source, classifier, errata, accuracy: {method: {pair: %}}} of a set of features; empty where there is none."""
    text = (Path(__file__).parent / "published.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text).get(name, {})
    return found


def rows(
    given: FeatureSet, names: Iterable[str] | None = None, pairs: Iterable[str] | None = None, judge: str = "1nn"
) -> Iterator[dict[str, float | str | None]]:
    """One row for each method and pair, as each is done: accuracies in % and the settings that gave them."""
    grids, figures = methods(), published(given.name).get("accuracy", {})
    wanted = tuple(given.pairs if pairs is None else pairs)
    for name in grids if names is None else names:
        done: dict[str, list[Fitted]] = {}
        for pair in wanted:
            letters = pair.split("->")
            back = "->".join(reversed(letters))
            turned = name in SYMMETRIC and back in done
            (X_s, y_s), (X_t, y_t) = (given.domains[letter] for letter in letters)
            first = np.arange(len(X_s) + len(X_t)) < (len(X_t) if turned else len(X_s))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Shrunk)  # D and W together have fewer than 100 components
                if turned:
                    results = tried(done.pop(back), y_s, ~first, judge)
                else:
                    fits = fitted(grids[name], np.vstack([X_s, X_t]), y_s, first)
                    results = tried(fits, y_s, first, judge)
                    if name in SYMMETRIC and back in wanted:
                        done[pair] = fits
            figure = figures.get(name, {}).get(pair)
            yield {"method": name, "pair": pair, **_judged(results, y_t), "published": figure}


def _judged(results: list[Tried], y_t: Array) -> dict[str, float | str | None]:
    """The target's labels are looked at here and nowhere else."""

    def accuracy(r: Tried) -> float:
        return round(100 * float((r.predicted == y_t).mean()), 2)

    pick, best = chosen(results), max(results, key=accuracy)
    return {
        "default": accuracy(results[0]),
        "chosen": accuracy(pick),
        "oracle": accuracy(best),
        "chosen_setting": f"{pick.name} {pick.view}",
        "oracle_setting": f"{best.name} {best.view}",
    }


def wide(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """One accuracy for each method (rows, in their order) and pair, with the mean of the pairs; all-empty rows go."""
    table = frame.pivot(index="method", columns="pair", values=column).reindex(
        columns=list(dict.fromkeys(frame["pair"]))
    )
    table = table.reindex(list(dict.fromkeys(frame["method"]))).astype(float).dropna(how="all")
    return table.assign(mean=table.mean(axis=1))


def markdown(frame: pd.DataFrame, column: str) -> str:
    """`wide` for a page."""
    table = wide(frame, column)
    lines = ["| method | " + " | ".join(table.columns) + " |", "|---" * (len(table.columns) + 1) + "|"]
    lines += [
        f"| {name} | " + " | ".join("" if np.isnan(v) else f"{v:.2f}" for v in row) + " |"
        for name, row in zip(table.index, table.to_numpy(), strict=True)
    ]
    return "\n".join(lines)
