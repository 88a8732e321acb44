"""The built-in domains of each layout: scanner and patients of each."""

from __future__ import annotations

from fdamed.config.datasets import Phantom, Shift
from fdamed.core.errors import FdamedError
from fdamed.data.phantom.findings import ATELECTASIS, CONSOLIDATION, EDEMA, LESION, PNEUMONIA

CHEXPERT = {
    LESION: Shift(gamma=0.25, exposure=-0.2, noise=0.3, blur=0.0, position=0.2, prevalence=0.5, sex=0.10, age=0.15),
    PNEUMONIA: Shift(gamma=-0.35, exposure=0.3, noise=0.2, blur=0.6, position=0.4, prevalence=0.5, sex=-0.1, age=-0.1),
    ATELECTASIS: Shift(gamma=0.5, exposure=0.1, noise=0.8, blur=0.3, position=0.5, prevalence=0.55, sex=0.1, age=0.1),
    CONSOLIDATION: Shift(gamma=-0.1, exposure=-0.4, noise=0.5, blur=0.2, position=0.3, prevalence=0.45, age=0.1),
    EDEMA: Shift(gamma=0.1, exposure=0.5, noise=0.6, blur=0.9, position=0.6, prevalence=0.5, sex=-0.15, age=0.25),
}
"""Large shift: condition -> its domain."""

MIMIC = {
    "White": Shift(weight=4, age=0.1),
    "Black": Shift(gamma=0.05, noise=0.1, weight=2),
    "Hispanic/Latino": Shift(exposure=0.08, blur=0.1, weight=1.5),
    "Asian": Shift(gamma=-0.08, exposure=-0.05, position=0.1, weight=1.2, age=0.1),
}
"""Small shift: race -> its domain."""

MIDRC = {
    "IL": Shift(gamma=-0.8, exposure=0.9, noise=0.8, blur=0.5, position=0.8, prevalence=0.62, weight=16203, age=-0.1),
    "NC": Shift(gamma=0.9, exposure=-0.6, noise=0.1, blur=0.0, position=0.2, prevalence=0.54, weight=3717, sex=0.3),
    "CA": Shift(gamma=-0.3, exposure=0.3, noise=1.0, blur=0.2, position=0.6, prevalence=0.28, weight=560, age=0.3),
    "IN": Shift(gamma=0.5, exposure=0.2, noise=0.3, blur=1.0, position=0.3, prevalence=0.62, weight=557, sex=0.2),
    "TX": Shift(gamma=0.2, exposure=-0.6, noise=0.6, blur=0.6, position=0.3, prevalence=0.16, weight=501, age=0.2),
}
"""Large shift, weights and positive rates of the published cohort: state -> its domain."""

BUILT_IN = {"chexpert": CHEXPERT, "mimic": MIMIC, "midrc": MIDRC}


def domains(phantom: Phantom, layout: str) -> dict[str, Shift]:
    """The domains that the configuration asks for, or the built-in ones."""
    known = BUILT_IN[layout]
    strange = [name for name in phantom.domains if name not in known]
    if strange:
        raise FdamedError(
            f"phantom.domains names {', '.join(strange)}, which the {layout} layout does not have",
            "configuration",
            f"Use some of: {', '.join(known)}.",
        )
    return dict(phantom.domains) or known
