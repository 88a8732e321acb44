"""The FedGTST paper's tables as configurations: all of them load, and the paper's cells stand beside the right runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fdamed.config import loader as configfile
from fdamed.config.base import digest_sections
from fdamed.config.datasets import Benchmark
from fdamed.config.split import Partition
from fdamed.config.study import Config
from fdamed.models.backbone import build

FEDGTST = Path(__file__).resolve().parents[2] / "config" / "papers" / "fedgtst"
COLUMNS = [("mnist_m", ""), ("mnist_m", "resnet18"), ("svhn", ""), ("svhn", "resnet18")]
OWN = "fashion_transfer"


def tables() -> list[tuple[str, str]]:
    """Every table of the paper, and our own transfer: a file and each of its variants."""
    files = sorted(FEDGTST.glob("*.yaml"))
    return [(p.stem, v) for p in files for v in ("", *configfile.read(p).get("variants", ()))]


def study(name: str, variant: str = "") -> Config:
    return configfile.load(FEDGTST / f"{name}.yaml", variant=variant or None)


def column(name: str, network: str, variant: str) -> Config:
    """One column of Tables 1 to 3 and 7 to 10."""
    return study(name, "_".join(word for word in (network, variant) if word))


def cell(config: Config, run: str, target: str = "") -> float:
    assert config.published is not None
    value = config.published.values[run]
    return value[target] if isinstance(value, dict) else value


@pytest.mark.parametrize(("name", "variant"), tables())
def test_every_table_loads_and_ends_with_a_new_head(name: str, variant: str) -> None:
    config = study(name, variant)
    assert isinstance(config.data, Benchmark) and isinstance(config.split, Partition)
    for run in config.expanded_runs().values():
        if run.method not in ("target_only", "finetune_head"):  # what no pre-training gives
            first, second = config.phases(run).values()
            assert second.method == "finetune_head" and config.train_of(second).patience is None
            assert name == OWN or config.train_of(first).patience
    if config.published is not None:
        assert set(config.published.values) == set(config.expanded_runs())


def test_studies_with_other_clients_have_other_names() -> None:
    splits: dict[str, set[str]] = {}
    for table in tables():
        config = study(*table)
        splits.setdefault(config.study, set()).add(digest_sections(config.split, config.train))
    assert all(len(different) == 1 for different in splits.values()), splits.keys()


def test_all_five_train_alike_on_fashion_but_for_their_rates_which_are_chosen_with_seeds_of_their_own() -> None:
    config, fifty, recipe, rates = (study(OWN, variant) for variant in ("", "clients_50", "recipe", "rates"))
    for each in (config, fifty):
        rows = {name: each.phases(run)["main"] for name, run in each.expanded_runs().items()}
        assert {"fedavg", "fedsr", "fediir", "scaffold", "fedgtst"} < rows.keys()
        assert all(row.train in (None, {"source": {"lr": each.train_of(row).source.lr}}) for row in rows.values())
        own = {name for name, row in rows.items() if each.train_of(row) != each.train}
        assert own == ({"scaffold"} if each is config else set())
    for choosing in (recipe, rates):
        assert choosing.split == config.split and not set(choosing.seeds) & set(config.seeds)
    chosen = {n: recipe.train_of(r).source for n, r in recipe.expanded_runs().items() if n.startswith("fedavg_")}
    assert config.train.source in chosen.values()


@pytest.mark.parametrize(
    ("variant", "averages"),
    [
        ("", {"fedavg": 73.0, "fedsr": 73.2, "fediir": 74.3, "fedgtst": 75.8}),
        ("scaffold", {"scaffold": 73.3, "fedgtst": 75.8}),
        ("clients_50", {"fedavg": 65.1, "fedsr": 65.7, "fediir": 66.1, "fedgtst": 70.7}),
        ("clients_100", {"fedavg": 50.7, "fedsr": 50.9, "scaffold": 54.1, "fedgtst": 60.2}),
        ("dirichlet_10", {"fedavg": 73.5, "fedsr": 73.9, "fediir": 74.9, "fedgtst": 76.5}),
        ("dirichlet_100", {"fedavg": 52.8, "fedsr": 54.2, "fediir": 56.1, "fedgtst": 62.4}),
    ],
)
def test_the_cells_of_a_row_have_the_average_that_the_paper_prints(variant: str, averages: dict[str, float]) -> None:
    for run, average in averages.items():
        mean = np.mean([cell(column(*place, variant), run) for place in COLUMNS])
        assert mean == pytest.approx(average, abs=0.1001), run


def test_the_cnn_with_32_pixels_is_lenet_5_and_a_resnet_takes_small_images() -> None:
    import torch

    lenet = build(study("svhn").model.model_copy(update={"channels": 1}))
    assert sum(p.numel() for p in lenet.parameters()) == 61_706  # LeCun et al. 1998 with all maps joined
    resnet = build(study("svhn", "resnet18").model).eval()
    assert resnet(torch.rand(2, 3, 32, 32)).shape == (2, 10)
