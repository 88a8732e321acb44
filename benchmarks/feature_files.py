"""Features of Office-Caltech10 and Office-31 as they are handed around: one MATLAB file for each domain.

A file's name begins with amazon, caltech, dslr or webcam (`Caltech10_SURF_L10.mat`, `dslr_fc6.mat`). Features:
`feas` or `fts` (n, p), labels `label` or `labels`. 800 features are SURF words: counts become shares and z-scores
within the domain, as in every paper; already z-scored ones stay as they are, as do 4,096 features (DeCAF6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.preprocessing import normalize, scale

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
    domains = {}
    for letter, name in DOMAINS.items():
        found = [p for p in sorted(folder.glob("*.mat")) if p.name.lower().startswith(name)]
        found = [p for p in found if "imgs" not in p.name.lower()]
        if not found and letter != "C":
            fix = f"Give one .mat file for each of {', '.join(DOMAINS.values())} (Office-31: without caltech)."
            raise FdamedError(f"{name}*.mat is not there", str(folder), fix)
        if len(found) > 1:
            what = f"two files for {name}: {found[0].name}, {found[1].name}"
            raise FdamedError(what, str(folder), "Leave one file for each domain in the folder.")
        if found:
            domains[letter] = _domain(found[0])
    sizes = sorted({X.shape[1] for X, _ in domains.values()})
    if len(sizes) > 1:
        what = f"the domains have {', '.join(map(str, sizes))} features"
        raise FdamedError(what, str(folder), "Give one kind of features per folder.")
    data = "office_caltech10" if "C" in domains else "office31"
    return FeatureSet(f"{data}_{KINDS.get(sizes[0], f'{sizes[0]}_features')}", domains)


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
        what = f"{' x '.join(map(str, X.shape))} features and {len(y)} labels"
        raise FdamedError(what, str(path), "Give one row of features for each label.")
    if not np.isfinite(X).all():
        raise FdamedError("features that are no finite numbers", str(path), "Extract the features again.")
    if X.shape[1] == 800 and (X >= 0).all():
        X = scale(normalize(X, norm="l1"))
    return X, y


def _one(content: Mapping[str, Array], names: tuple[str, ...], path: Path) -> Array:
    for name in names:
        if name in content:
            return content[name]
    what = f"none of {', '.join(names)} is in the file"
    raise FdamedError(what, str(path), "Rename the variable, or use other files.")
