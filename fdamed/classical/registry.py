"""The classical methods as rows of a study: options as in a configuration, and the estimator that they mean.

They are not federated: features of all clients meet at one place (`messages.py`), which `privacy.release` must allow.
Nothing is chosen by labels of the target: options are fixed, or with `choose` selected by reverse validation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from sklearn.preprocessing import FunctionTransformer

from fdamed.classical.coral import CORAL
from fdamed.classical.dann import DaNN
from fdamed.classical.gfk import GFK
from fdamed.classical.inputs import Array
from fdamed.classical.jda import JDA
from fdamed.classical.messages import STEPS
from fdamed.classical.tca import RFTCA, RTCA, TCA
from fdamed.federation.client import Step
from fdamed.federation.method import description, option

RANDOM_FEATURES = "Robust and Communication-Efficient Federated Domain Adaptation via Random Features"
FEW = 30
"""The other number of components that `choose` tries."""


class Unaligned(FunctionTransformer):  # type: ignore[misc]
    """The features as they are."""

    def fit_transform(self, X: Array, y: Array, sample_domain: Array) -> Array:
        return X


@dataclass(frozen=True)
class Row:
    """The options of every classical row; without others, the baseline: features as they are."""

    title: ClassVar[str] = "Features, not aligned"
    paper: ClassVar[str] = "the baseline of every alignment"
    target_labels: ClassVar[bool] = False
    every_target_label: ClassVar[bool] = False
    steps: ClassVar[tuple[Step, ...]] = STEPS
    needs_each: ClassVar[str] = "the features of all clients meet at one place"
    exact: ClassVar[bool] = False
    """True: it needs an n x n matrix."""

    features: str = option("init", "model that computes the features: init (frozen) or a finished run of the study")
    classifier: Literal["logistic", "svm", "1nn"] = option(
        "logistic", "classifier on the sources' aligned features; the ROC curve of 1nn has only one step"
    )
    zscore: Literal["none", "domain"] = option(
        "none", "features at mean 0 and variance 1: not at all, or within each hospital"
    )
    choose: bool = option(False, "settings by reverse validation, without labels of the target, instead of the options")

    def estimator(self, seed: int) -> Any:
        """The method with these options."""
        return Unaligned()

    def candidates(self) -> list[Row]:
        """The settings that `choose` tries, this one first."""
        return [self]


@dataclass(frozen=True)
class Tca(Row):
    title: ClassVar[str] = "TCA"
    paper: ClassVar[str] = "Pan et al. 2011"
    exact: ClassVar[bool] = True
    kind: ClassVar[type] = TCA

    components: int = option(100, "most components", 1)
    gamma: float = option(1.0, "weight of the penalty", 1e-9)
    sigma: float = option(0.0, "width of the Gaussian kernel; 0: the median distance", 0.0)

    def estimator(self, seed: int) -> Any:
        sigma = self.sigma or "median"
        return self.kind(self.components, self.gamma, sigma=sigma, scale="penalty", unit_norm=True)

    def candidates(self) -> list[Row]:
        sizes = dict.fromkeys((self.components, min(FEW, self.components)))
        return [replace(self, gamma=g, components=m) for g in (self.gamma, 1e-3 * self.gamma) for m in sizes]


@dataclass(frozen=True)
class Rtca(Tca):
    title: ClassVar[str] = "R-TCA"
    paper: ClassVar[str] = RANDOM_FEATURES
    kind: ClassVar[type] = RTCA


@dataclass(frozen=True)
class Rftca(Tca):
    title: ClassVar[str] = "RF-TCA"
    paper: ClassVar[str] = RANDOM_FEATURES
    exact: ClassVar[bool] = False
    kind: ClassVar[type] = RFTCA

    frequencies: int = option(500, "N; there are 2N random features", 1)

    def estimator(self, seed: int) -> Any:
        return super().estimator(seed).set_params(N=self.frequencies, seed=seed)


@dataclass(frozen=True)
class Coral(Row):
    title: ClassVar[str] = "CORAL"
    paper: ClassVar[str] = "Sun, Feng and Saenko 2016"

    ridge: float = option(1.0, "added to both covariances", 1e-9)
    center: bool = option(True, "also subtract each domain's mean")

    def estimator(self, seed: int) -> Any:
        return CORAL(ridge=self.ridge, center=self.center)

    def candidates(self) -> list[Row]:
        return [replace(self, ridge=ridge) for ridge in (self.ridge, 10 * self.ridge)]


@dataclass(frozen=True)
class Jda(Row):
    title: ClassVar[str] = "JDA"
    paper: ClassVar[str] = "Long et al. 2013"
    exact: ClassVar[bool] = True

    components: int = option(100, "most components", 1)
    gamma: float = option(1.0, "weight of the penalty (lambda of the paper)", 1e-9)
    kernel: Literal["linear", "gaussian"] = option("linear", "kernel")
    passes: int = option(10, "maximum number of passes with new pseudo-labels", 1)

    def estimator(self, seed: int) -> Any:
        return JDA(self.components, self.gamma, self.kernel, iterations=self.passes)

    def candidates(self) -> list[Row]:
        return [replace(self, components=m) for m in dict.fromkeys((self.components, min(FEW, self.components)))]


@dataclass(frozen=True)
class Gfk(Row):
    title: ClassVar[str] = "GFK"
    paper: ClassVar[str] = "Gong et al. 2012"

    components: int = option(20, "dimensions of both subspaces", 1)

    def estimator(self, seed: int) -> Any:
        return GFK(self.components)

    def candidates(self) -> list[Row]:
        return [replace(self, components=k) for k in (self.components, 2 * self.components)]


@dataclass(frozen=True)
class Dann(Row):
    title: ClassVar[str] = "DaNN"
    paper: ClassVar[str] = "Ghifary et al. 2014"

    weight: float = option(0.25, "weight of the squared discrepancy", 0.0)
    epochs: int = option(100, "epochs; the best one on a tenth of the source samples is kept", 1)

    def estimator(self, seed: int) -> Any:
        return DaNN(weight=self.weight, epochs=self.epochs, seed=seed)


ROWS: dict[str, type[Row]] = {
    "coral": Coral,
    "dann": Dann,
    "gfk": Gfk,
    "jda": Jda,
    "not_aligned": Row,
    "rftca": Rftca,
    "rtca": Rtca,
    "tca": Tca,
}
"""Name in a configuration -> row."""


def describe() -> dict[str, dict[str, Any]]:
    """The rows' part of catalog.json."""
    return {name: description(cls) | {"classical": True} for name, cls in ROWS.items()}
