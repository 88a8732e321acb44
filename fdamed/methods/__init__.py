"""One file a paper's method; importing this package registers all of them."""

from fdamed.methods import fedavg, fedda, fedgp, finetune, finetune_offline, gp, oracle, target_only

__all__ = ["fedavg", "fedda", "fedgp", "finetune", "finetune_offline", "gp", "oracle", "target_only"]
