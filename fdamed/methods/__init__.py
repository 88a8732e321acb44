"""The methods, one file or package each. Importing this package registers all of them."""

from importlib import import_module

METHODS = (
    "fada",
    "fdan",
    "fdann",
    "fedavg",
    "fedda",
    "fedda_auto",
    "fedgp",
    "fedgp_auto",
    "fedgtst",
    "fediir",
    "fedprox",
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
)

for _name in METHODS:
    import_module(f"fdamed.methods.{_name}")
