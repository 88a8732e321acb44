"""Which findings go with which label, layout by layout."""

from __future__ import annotations

import numpy as np

from fdamed.data.phantom import findings as f
from fdamed.data.phantom.population import Flags, Numbers

MIMICS = 0.28
"""Share of the CheXpert negatives that show another condition: a reader of one condition is no reader of another."""
COMPANY = 0.15
"""Share of the positives that show another one beside their own."""


def conditions(rng: np.random.Generator, domain: Numbers, positive: Flags, names: tuple[str, ...]) -> Flags:
    """CheXpert: a domain is a condition; its negatives are other people's patients, not healthy ones."""
    shows = _bystanders(rng, len(domain), positive)
    own = np.array([f.KINDS.index(n) for n in names])[domain]
    rows = np.arange(len(domain))
    other = rng.integers(1, len(f.PULMONARY), len(domain))
    also = rng.random(len(domain)) < np.where(positive, COMPANY, MIMICS)
    shows[rows[also], ((own + other) % len(f.PULMONARY))[also]] = True
    shows[rows, own] = positive
    return shows


def any_finding(rng: np.random.Generator, domain: Numbers, positive: Flags, names: tuple[str, ...]) -> Flags:
    """MIMIC-CXR: positive is any finding; negative is a clear chest."""
    shows = np.zeros((len(domain), len(f.KINDS)), dtype=bool)
    kinds = (*f.PULMONARY, f.CARDIOMEGALY, f.EFFUSION)
    rows = np.arange(len(domain))
    for share in (1.0, 0.45):
        columns = np.array([f.KINDS.index(kinds[k]) for k in rng.integers(0, len(kinds), len(domain))])
        shows[rows, columns] |= rng.random(len(domain)) < share
    shows &= positive[:, None]
    shows[:, f.KINDS.index(f.DEVICES)] = rng.random(len(domain)) < 0.15
    return shows


SHORTCUT = {"NC": 0.6, "CA": 0.5, "IN": 0.6, "TX": 0.5}
"""State -> how much more often its positives carry tubes and lines than its negatives: a cue that IL does not have."""
OTHERWISE_ILL = {"IL": 0.6}
"""State -> share of its negatives with another lung disease; elsewhere ELSEWHERE. It makes haze a poor sign in IL."""
ELSEWHERE = 0.12


def covid(rng: np.random.Generator, domain: Numbers, positive: Flags, names: tuple[str, ...]) -> Flags:
    """MIDRC: positive is ground glass on both sides; a negative may have any other lung disease."""
    shows = _bystanders(rng, len(domain), positive)
    rows = np.arange(len(domain))
    other = rng.integers(1, len(f.PULMONARY), len(domain))
    ill = np.array([OTHERWISE_ILL.get(name, ELSEWHERE) for name in names])[domain]
    also = rng.random(len(domain)) < np.where(positive, 0.1, ill)
    shows[rows[also], other[also]] = True
    cue = np.array([SHORTCUT.get(name, 0.0) for name in names])[domain]
    shows[:, f.KINDS.index(f.DEVICES)] |= positive & (rng.random(len(domain)) < cue)
    shows[:, f.KINDS.index(f.COVID)] = positive
    return shows


def _bystanders(rng: np.random.Generator, count: int, positive: Flags) -> Flags:
    """Findings that no label of the study asks for."""
    shows = np.zeros((count, len(f.KINDS)), dtype=bool)
    for kind, share in ((f.CARDIOMEGALY, 0.12), (f.EFFUSION, 0.06), (f.DEVICES, 0.22)):
        shows[:, f.KINDS.index(kind)] = rng.random(count) < share
    return shows
