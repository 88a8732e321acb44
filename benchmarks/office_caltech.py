"""TCA, CORAL, JDA and others on all pairs of a set: `python -m benchmarks.office_caltech FOLDER`.

FOLDER has the features of Office-31 or Office-Caltech10, one .mat file per domain: amazon*, dslr*, webcam*, and for
the latter caltech*.

Three accuracies for each pair and method: `default` (fixed settings), `chosen` (reverse validation, no target labels)
and `oracle` (the best of the grid on the target's own labels: not an estimate of anything, shown because the FedRF-TCA
paper reports the best of its search in that way). Published figures are shown next to them where there are any.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import normalize as unit_rows
from sklearn.svm import SVC

from benchmarks.feature_files import FeatureSet, read
from fdamed.classical.central_fit import CLASSIFIERS, reverse_accuracy, squared_distances
from fdamed.classical.coral import CORAL
from fdamed.classical.dann import DaNN
from fdamed.classical.gfk import GFK
from fdamed.classical.inputs import Array, Shrunk
from fdamed.classical.jda import JDA
from fdamed.classical.registry import Unaligned
from fdamed.classical.tca import RFTCA, RTCA, TCA
from fdamed.core.files import atomic
from fdamed.core.progress import track
from fdamed.core.rng import stream

COLUMNS = ("default", "chosen", "oracle", "published")
JUDGES = CLASSIFIERS | {
    "linear": lambda: SVC(kernel="linear"),
    "mlp": lambda: MLPClassifier(
        (100, 100), random_state=0, learning_rate_init=2e-3, batch_size=100, max_iter=50, n_iter_no_change=50
    ),
}
"""Name -> classifier; `mlp` is that of the FedRF-TCA paper: two layers of 100, Adam 2e-3, batches of 100, 50 epochs."""
SIZES = (100, 30)
GAMMAS = (1.0, 1e-3)


class LaplacianRFTCA(RFTCA):
    """RF-TCA of exp(-|x - y|_1 / sigma): frequencies Cauchy, scale 1 / sigma."""

    metric = "cityblock"

    def draw_frequencies(self, p: int) -> Array:
        return stream(self.seed, "rff", "laplacian").numpy.standard_cauchy((self.N, p)) / self.sigma_


class CauchyRFTCA(RFTCA):
    """RF-TCA of prod_j 1 / (1 + (x_j - y_j)^2 / sigma^2): frequencies Laplace, scale 1 / sigma."""

    def draw_frequencies(self, p: int) -> Array:
        return stream(self.seed, "rff", "cauchy").numpy.laplace(scale=1.0 / self.sigma_, size=(self.N, p))


@dataclass(frozen=True)
class View:
    """How many leading components of an estimator's features are used, centered or not, at equal variance or not, and
    each sample at norm 1 or not."""

    components: int | None = None
    center: bool = False
    unit_norm: bool = False
    equal: bool = False

    def of(self, features: Array) -> Array:
        """The features that a classifier sees."""
        part = features[:, : self.components]
        if self.equal:
            spread = part.std(axis=0)
            part = part / np.where(spread > 0, spread, 1.0)
        part = part - part.mean(axis=0) if self.center else part
        return unit_rows(part) if self.unit_norm else part


@dataclass(frozen=True)
class Candidate:
    """A setting with its estimator; components are nested, so that one fit serves several views."""

    name: str
    estimator: Any
    views: tuple[View, ...] = (View(),)


Fitted = tuple[Candidate, Array, Array | None]
"""A candidate, its features of all samples (n, d), and its own predictions (n,) if it is a classifier."""
Tried = tuple[str, float, Array]
"""A setting, its score without target labels, and the target's predictions (n_T,)."""
VIEWS = tuple(View(m, center, True, equal) for equal in (False, True) for center in (False, True) for m in SIZES)
"""The first is the default: m = 100, not centered, scale `penalty`, samples at norm 1."""
SYMMETRIC = frozenset({
    "TCA", "R-TCA", "RF-TCA (gaussian)", "RF-TCA (N = 1000)", "RF-TCA (laplacian)", "RF-TCA (cauchy)", "GFK",
})  # fmt: skip
"""Methods that do not know which domain is the source: one fit serves both directions."""


def methods() -> dict[str, list[Candidate]]:
    """Method -> the settings that are tried; the first candidate's first view is the default.

    TCA, R-TCA and RF-TCA are fitted once at the scale `penalty`; the views turn it into `variance` (equal) and take
    fewer components, because the components of a fit are nested.
    """
    coral = [(r, c) for c in (False, True) for r in (1.0, 10.0)]
    return {
        "not aligned": [Candidate("as they are", Unaligned())],
        "TCA": [c for kernel in ("gaussian", "linear") for c in _spectral(TCA, f"{kernel} ", kernel=kernel)],
        "R-TCA": _spectral(RTCA),
        "RF-TCA (gaussian)": _spectral(RFTCA),
        "RF-TCA (N = 1000)": _spectral(RFTCA, N=1000),
        "RF-TCA (laplacian)": _spectral(LaplacianRFTCA),
        "RF-TCA (cauchy)": _spectral(CauchyRFTCA),
        "CORAL": [
            Candidate(f"ridge={r:g}{' centered' if c else ''}", CORAL(r, c), (View(), View(unit_norm=True)))
            for r, c in coral
        ],
        "JDA": [Candidate(f"{k} kernel m={m}", JDA(m, kernel=k)) for k in ("linear", "gaussian") for m in SIZES],
        "GFK": [Candidate(f"k={k}", GFK(k)) for k in (20, 40)],
        "DaNN": [Candidate("weight=0.25", DaNN())],
    }


def _spectral(estimator: type, name: str = "", **settings: object) -> list[Candidate]:
    return [
        Candidate(f"{name}gamma={g:g}", estimator(gamma=g, n_components=SIZES[0], scale="penalty", **settings), VIEWS)
        for g in GAMMAS
    ]


def fitted(candidates: Iterable[Candidate], X: Array, y: Array, source: Array) -> list[Fitted]:
    """Every candidate fitted; y (n_S,) are the source's labels, those of the target are not available here."""
    labels = np.zeros(len(X), dtype=y.dtype)
    labels[source] = y
    fits = []
    for candidate in candidates:
        model = clone(candidate.estimator)
        features = model.fit_transform(X, labels, sample_domain=np.where(source, 1, -1))
        fits.append((candidate, features, model.predict(X) if hasattr(model, "predict") else None))
    return fits


def tried(fits: Iterable[Fitted], y: Array, source: Array, judge: str = "1nn") -> list[Tried]:
    """Every view of every candidate with the classifier `judge`, or the candidate's own predictions."""
    results = []
    for candidate, features, predicted in fits:
        for view in candidate.views:
            Z = view.of(features)
            D = squared_distances(Z[~source], Z[source])
            if predicted is not None:
                guess = predicted[~source]
            elif judge == "1nn":
                guess = y[D.argmin(axis=1)]
            else:
                guess = JUDGES[judge]().fit(Z[source], y).predict(Z[~source])
            results.append((f"{candidate.name} {view}", reverse_accuracy(D, y), guess))
    return results


@cache
def published(name: str) -> dict[str, Any]:
    """{source, classifier, errata, accuracy: {method: {pair: %}}} of a set of features; empty where there is none."""
    text = (Path(__file__).parent / "office_published.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text).get(name, {})
    return found


def rows(
    given: FeatureSet, names: Iterable[str] | None = None, pairs: Iterable[str] | None = None, judge: str = "1nn"
) -> Iterator[dict[str, float | str | None]]:
    """One row for each method and pair, as each is done: accuracies in % and the settings that gave them."""
    grids, figures = methods(), published(given.name).get("accuracy", {})
    for name in grids if names is None else names:
        done: dict[str, list[Fitted]] = {}
        for pair in given.pairs if pairs is None else pairs:
            s, t = pair.split("->")
            (X_s, y_s), (X_t, y_t) = given.domains[s], given.domains[t]
            source = np.arange(len(X_s) + len(X_t)) < len(X_s)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Shrunk)  # D and W together have fewer than 100 components
                if f"{t}->{s}" in done:
                    results = tried(done.pop(f"{t}->{s}"), y_s, np.roll(source, len(X_t)), judge)
                else:
                    fits = fitted(grids[name], np.vstack([X_s, X_t]), y_s, source)
                    results = tried(fits, y_s, source, judge)
                    done |= {pair: fits} if name in SYMMETRIC else {}
            figure = figures.get(name, {}).get(pair)
            yield {"method": name, "pair": pair, **_judged(results, y_t), "published": figure}


def _judged(results: list[Tried], y_t: Array) -> dict[str, float | str | None]:
    """The target's labels are looked at here and nowhere else."""

    accuracy = [round(100 * float((predicted == y_t).mean()), 2) for _, _, predicted in results]
    pick, best = int(np.argmax([score for _, score, _ in results])), int(np.argmax(accuracy))
    return {
        "default": accuracy[0],
        "chosen": accuracy[pick],
        "oracle": accuracy[best],
        "chosen_setting": results[pick][0],
        "oracle_setting": results[best][0],
    }


def markdown(frame: pd.DataFrame, column: str) -> str:
    """One accuracy for each method and pair, with the mean of the pairs; methods without any are left out."""
    table = frame.pivot_table(column, "method", "pair", sort=False).assign(mean=lambda t: t.mean(axis=1))
    lines = ["| method | " + " | ".join(table.columns) + " |", "|---" * (len(table.columns) + 1) + "|"]
    lines += [
        f"| {name} | " + " | ".join("" if np.isnan(v) else f"{v:.2f}" for v in row) + " |"
        for name, row in zip(table.index, table.to_numpy(), strict=True)
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, metavar="TABLE.csv", help="every figure with the setting that gave it")
    parser.add_argument("--methods", nargs="+", choices=tuple(methods()), metavar="METHOD", help="only these")
    parser.add_argument("--pairs", nargs="+", metavar="S->T", help="only these, such as 'C->A'")
    parser.add_argument("--classifier", choices=tuple(JUDGES), default="1nn")
    arguments = parser.parse_args(argv)
    given = read(arguments.folder)
    names, pairs = arguments.methods or tuple(methods()), arguments.pairs or given.pairs
    if stray := set(pairs) - set(given.pairs):
        parser.error(f"no pair {min(stray)!r}; choose among: {', '.join(given.pairs)}")
    work = rows(given, names, pairs, arguments.classifier)
    frame = pd.DataFrame(track(work, f"pairs of {given.name}", total=len(names) * len(pairs)))
    if arguments.out:
        with atomic(arguments.out) as draft:
            frame.to_csv(draft, index=False)
    source = published(given.name)
    about = {"oracle": "the best on the target's own labels: not attainable", "published": source.get("source")}
    for column in COLUMNS:
        if frame[column].notna().any():
            print(f"\n{column} ({about.get(column, arguments.classifier)})\n{markdown(frame, column)}")
    for line in source.get("errata", ()):
        print(f"erratum: {line}")


if __name__ == "__main__":
    main()
