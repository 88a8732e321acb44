"""One file a paper's method; importing this package registers all of them."""

from fdamed.methods import (
    fdan,
    fdann,
    fedavg,
    fedda,
    fedda_auto,
    fedgp,
    fedgp_auto,
    fedgtst,
    fediir,
    fedprox,
    fedsr,
    finetune,
    finetune_head,
    finetune_offline,
    finetune_whole,
    gp,
    oracle,
    scaffold,
    target_only,
)
from fdamed.methods.fada import method as fada
from fdamed.methods.fedrf_tca import method as fedrf_tca
from fdamed.methods.kd3a import method as kd3a

__all__ = [
    "fada",
    "fdan",
    "fdann",
    "fedavg",
    "fedda",
    "fedda_auto",
    "fedgp",
    "fedgp_auto",
    "fedprox",
    "fedgtst",
    "fediir",
    "fedrf_tca",
    "fedsr",
    "finetune",
    "finetune_head",
    "finetune_offline",
    "finetune_whole",
    "gp",
    "kd3a",
    "oracle",
    "scaffold",
    "target_only",
]
