"""The methods, one file or package each. Importing this package registers all of them."""

from importlib import import_module

METHODS = (
    "auto_weighted",
    "fada",
    "fdan",
    "fdann",
    "fedavg",
    "fedda",
    "fedgp",
    "fedgtst",
    "fediir",
    "fedprox",
    "fedrf_tca",
    "fedsr",
    "finetune",
    "finetune_offline",
    "finetune_phase",
    "gp",
    "kd3a",
    "oracle",
    "scaffold",
    "target_only",
)

for _name in METHODS:
    import_module(f"fdamed.methods.{_name}")
