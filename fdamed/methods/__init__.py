"""One file a paper's method; importing this package registers all of them."""

from fdamed.methods import (
    fada,
    fdan,
    fdann,
    fedavg,
    fedda,
    fedda_auto,
    fedgp,
    fedgp_auto,
    fedrf_tca,
    finetune,
    finetune_offline,
    gp,
    kd3a,
    oracle,
    target_only,
)

__all__ = [
    "fada",
    "fdan",
    "fdann",
    "fedavg",
    "fedda",
    "fedda_auto",
    "fedgp",
    "fedgp_auto",
    "fedrf_tca",
    "finetune",
    "finetune_offline",
    "gp",
    "kd3a",
    "oracle",
    "target_only",
]
