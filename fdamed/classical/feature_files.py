"""Features of Office-Caltech10 and Office-31 as they are handed around: one MATLAB file for each domain.

amazon, caltech, dslr and webcam stand at the beginning of the file's name (`amazon.mat`, `Caltech10_SURF_L10.mat`,
`amazon_decaf.mat`, `dslr_fc6.mat`); features are `feas` or `fts` (n, p), labels `label` or `labels`. 800 features are
SURF words: counts are divided by their sum and z-scored within the domain, as every paper does, and files that are
already z-scored are taken as they are. 4,096 features are DeCAF6 and stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fdamed.classical.inputs import Array
from fdamed.core.errors import FdamedError

DOMAINS = {"C": "caltech", "A": "amazon", "W": "webcam", "D": "dslr"}
FEATURES, LABELS = ("feas", "fts", "fea", "features"), ("label", "labels", "gnd")
KINDS = {800: "surf", 4096: "decaf6"}


@dataclass(frozen=True)
class FeatureSet:
    """The domains of a data set by their letters: features (n, p) and labels (n,)."""

    name: str
    """office_caltech10_surf, office31_decaf6 and so on: the key of published figures."""
    domains: dict[str, tuple[Array, Array]]

    @property
    def pairs(self) -> tuple[str, ...]:
        return tuple(f"{s}->{t}" for s in self.domains for t in self.domains if s != t)


def read(folder: Path) -> FeatureSet:
    """The files of a folder: three domains are Office-31, four Office-Caltech10."""
    if not folder.is_dir():
        raise FdamedError("there is no such folder", str(folder), "Give the folder with the .mat files.")
    files = {letter: _file(folder, name) for letter, name in DOMAINS.items()}
    missing = [DOMAINS[letter] for letter, path in files.items() if path is None and letter != "C"]
    if missing:
        fix = f"Give one .mat file for each of {', '.join(DOMAINS.values())} (Office-31: without caltech)."
        raise FdamedError(f"{missing[0]}*.mat is not there", str(folder), fix)
    domains = {letter: _domain(path) for letter, path in files.items() if path is not None}
    sizes = {X.shape[1] for X, _ in domains.values()}
    if len(sizes) > 1:
        what = f"the domains have {', '.join(map(str, sorted(sizes)))} features"
        raise FdamedError(what, str(folder), "Give one kind of features a folder.")
    (p,) = sizes
    data = "office_caltech10" if "C" in domains else "office31"
    return FeatureSet(f"{data}_{KINDS.get(p, f'{p}_features')}", domains)


def _file(folder: Path, name: str) -> Path | None:
    found = sorted(p for p in folder.glob("*.mat") if p.name.lower().startswith(name) and "imgs" not in p.name.lower())
    if len(found) > 1:
        what = f"two files for {name}: {found[0].name}, {found[1].name}"
        raise FdamedError(what, str(folder), "Leave one file for each domain in the folder.")
    return found[0] if found else None


def _domain(path: Path) -> tuple[Array, Array]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(path)
    except (MatReadError, NotImplementedError, ValueError, TypeError, OSError):
        fix = "Use MATLAB files of version 5 to 7.2 (`save -v7`)."
        raise FdamedError("not a readable MATLAB file", str(path), fix) from None
    X, y = _one(content, FEATURES, path), _one(content, LABELS, path).ravel().astype(int)
    X = np.asarray(X.todense() if hasattr(X, "todense") else X, dtype=np.float64)
    if X.ndim != 2 or len(X) != len(y):
        shape = " x ".join(map(str, X.shape))
        raise FdamedError(
            f"{shape} features and {len(y)} labels", str(path), "Give one row of features for each label."
        )
    if not np.isfinite(X).all():
        raise FdamedError("features that are no finite numbers", str(path), "Extract the features again.")
    return (_scored(X) if X.shape[1] == 800 and (X >= 0).all() else X), y


def _scored(counts: Array) -> Array:
    """SURF words: shares of each image, then z-scores within the domain; a word that nobody has is 0."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    spread = shares.std(axis=0)
    scored: Array = (shares - shares.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return scored


def _one(content: Mapping[str, Array], names: tuple[str, ...], path: Path) -> Array:
    for name in names:
        if name in content:
            return content[name]
    raise FdamedError(
        f"none of {', '.join(names)} is in the file", str(path), "Rename the variable, or use other files."
    )
