"""The FedGTST paper's tables as configurations: all of them load, and the paper's cells stand beside the right runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fdamed.config import loader as configfile
from fdamed.config.datasets import Benchmark
from fdamed.config.split import Partition
from fdamed.config.study import Config
from fdamed.models.backbone import build
from tests.unit.test_config import TO_COME

CONFIG = Path(__file__).resolve().parents[2] / "config"
FEDGTST = CONFIG / "fedgtst"
COLUMNS = ["mnist_m_lenet", "mnist_m_resnet18", "svhn_lenet", "svhn_resnet18"]


def files() -> list[tuple[Path, ...]]:
    """Every configuration of the paper's tables and of our own transfer, as it is given to Snakemake."""
    own = CONFIG / "fashion_transfer.yaml"
    out: list[tuple[Path, ...]] = [(own,), *((own, p) for p in sorted((CONFIG / "fashion_transfer").glob("*.yaml")))]
    for path in sorted(FEDGTST.rglob("*.yaml")):
        out.append((path,) if path.parent == FEDGTST else (FEDGTST / f"{path.parent.name}.yaml", path))
    return out


@pytest.fixture(autouse=True)
def methods(monkeypatch) -> None:
    """Stand-ins for methods that are not registered yet, with the options that the tables name."""
    known = configfile.catalog()
    stand_in = known["fedavg"] | {"options": {"xi": {"type": "float", "help": "", "default": 5e-4}}}
    absent = dict.fromkeys(TO_COME - known.keys(), stand_in)
    monkeypatch.setattr(configfile, "catalog", lambda: known | absent)


def study(name: str, column: str = "") -> Config:
    return configfile.load(FEDGTST / f"{name}.yaml", *([FEDGTST / name / f"{column}.yaml"] if column else []))


def cell(config: Config, run: str, target: str = "") -> float:
    assert config.published is not None
    value = config.published.values[run]
    return value[target] if isinstance(value, dict) else value


@pytest.mark.parametrize("paths", files(), ids=lambda p: "-".join(x.stem for x in p))
def test_every_table_loads_and_trains_as_the_paper_says(paths: tuple[Path, ...]) -> None:
    config = configfile.load(*paths)
    assert isinstance(config.data, Benchmark) and isinstance(config.split, Partition)
    assert len(config.seeds) == (1 if paths[-1].stem == "recipe" else 3)
    for run in config.expanded_runs().values():
        if run.method in ("target_only", "finetune_head"):  # what no pre-training gives
            continue
        first, second = config.phases(run)
        target = config.train_of(second).target
        assert second.method == "finetune_head" and (target.lr, target.weight_decay) == (0.005, 1e-4)
        assert config.train_of(second).patience is None and target.at(199).lr == 0.005
        if FEDGTST in paths[0].parents:
            train = config.train_of(first)
            assert train.patience == 10 and train.source.decay is not None
            assert train.source.at(51).lr == pytest.approx(train.source.lr / 10)
    if config.published is not None:
        assert set(config.published.values) == set(config.expanded_runs())


@pytest.mark.parametrize("paths", files(), ids=lambda p: "-".join(x.stem for x in p))
def test_the_command_in_a_files_head_is_the_one_that_uses_it(paths: tuple[Path, ...]) -> None:
    names = " ".join(str(p.relative_to(CONFIG.parent)) for p in paths)
    assert f"--configfile {names}\n" in paths[-1].read_text(encoding="utf-8")


def test_studies_with_other_hospitals_have_other_names() -> None:
    cuts: dict[str, set[str]] = {}
    for paths in files():
        config = configfile.load(*paths)
        cuts.setdefault(config.study, set()).add(config.split.model_dump_json() + config.train.model_dump_json())
    assert all(len(different) == 1 for different in cuts.values()), cuts.keys()


def test_all_five_train_alike_on_fashion_and_the_recipe_is_chosen_with_a_seed_of_its_own() -> None:
    own = CONFIG / "fashion_transfer.yaml"
    config, fifty, recipe = (
        configfile.load(own, *more)
        for more in ((), *((CONFIG / "fashion_transfer" / f"{n}.yaml",) for n in ("50", "recipe")))
    )
    assert (
        isinstance(config.data, Benchmark)
        and isinstance(fifty.split, Partition)
        and isinstance(config.split, Partition)
    )
    moved = config.data.domains["shifted"].shift
    assert moved is not None and moved.rotate and moved.invert and moved.noise, "the three shifts"
    for study in (config, fifty):
        rows = {name: study.phases(run)[0] for name, run in study.expanded_runs().items()}
        assert {"fedavg", "fedsr", "fediir", "scaffold", "fedgtst"} < rows.keys()
        assert all(study.train_of(row) == study.train and row.train is None for row in rows.values())
    assert fifty.split.n_clients == 50 and fifty.split.classes_each == 2
    assert fifty.split.per_source and config.split.per_source
    assert fifty.split.n_clients * fifty.split.per_source == config.split.n_clients * config.split.per_source
    assert config.split.val and recipe.split == config.split and not set(recipe.seeds) & set(config.seeds)
    chosen = {n: recipe.train_of(r).source for n, r in recipe.expanded_runs().items() if n.startswith("fedavg_")}
    assert len(chosen) == 6 and config.train.source in chosen.values()


@pytest.mark.parametrize(
    ("column", "averages"),
    [
        ("", {"fedavg": 73.0, "fedsr": 73.2, "fediir": 74.3, "fedgtst": 75.8}),
        ("scaffold", {"scaffold": 73.3, "fedgtst": 75.8}),
        ("clients_50", {"fedavg": 65.1, "fedsr": 65.7, "fediir": 66.1, "fedgtst": 70.7}),
        ("clients_100", {"fedavg": 50.7, "fedsr": 50.9, "scaffold": 54.1, "fedgtst": 60.2}),
        ("dirichlet_10", {"fedavg": 73.5, "fedsr": 73.9, "fediir": 74.9, "fedgtst": 76.5}),
        ("dirichlet_100", {"fedavg": 52.8, "fedsr": 54.2, "fediir": 56.1, "fedgtst": 62.4}),
    ],
)
def test_the_cells_of_a_row_have_the_average_that_the_paper_prints(column: str, averages: dict[str, float]) -> None:
    for run, average in averages.items():
        mean = np.mean([cell(study(name, column), run) for name in COLUMNS])
        assert mean == pytest.approx(average, abs=0.1001), run


@pytest.mark.parametrize(
    ("name", "column", "run", "target", "per_cent"),
    [
        ("svhn_lenet", "clients_100", "fediir", "", 44.8),
        ("mnist_m_resnet18", "dirichlet_100", "fedgtst", "", 69.2),
        ("participation", "", "fedgtst-xi-0.0005", "", 58.0),
        ("participation", "100", "fedavg", "", 56.0),
        ("epochs", "", "fedgtst-xi-0.0001", "", 60.0),
        ("epochs", "10", "fedgtst-xi-0.001", "", 53.0),
        ("domainnet", "", "fedsr", "quickdraw", 13.4),
        ("domainnet", "", "fedgtst", "clipart", 63.9),
    ],
)
def test_cells_read_off_the_paper(name: str, column: str, run: str, target: str, per_cent: float) -> None:
    assert cell(study(name, column), run, target) == per_cent


def test_the_columns_are_the_papers_clients_and_shares() -> None:
    for name in COLUMNS:
        for column, by, clients in (
            ("", "classes", 10),
            ("clients_50", "classes", 50),
            ("dirichlet_100", "dirichlet", 100),
        ):
            cut = study(name, column).split
            assert isinstance(cut, Partition) and (cut.by, cut.n_clients, len(cut.clients)) == (
                by,
                clients,
                clients + 1,
            )
        assert study(name).train.participation == 0.5
    assert [study("participation", c).train.participation for c in ("", "100")] == [0.1, 1.0]
    assert [study("epochs", c).train.source.epochs for c in ("", "10")] == [1, 10]


def test_the_cnn_with_32_pixels_is_lenet_5_and_a_resnet_takes_small_images() -> None:
    import torch

    lenet = build(study("svhn_lenet").model.model_copy(update={"channels": 1}))
    assert sum(p.numel() for p in lenet.parameters()) == 61_706  # LeCun et al. 1998 with all maps joined
    resnet = build(study("svhn_resnet18").model).eval()
    assert resnet(torch.rand(2, 3, 32, 32)).shape == (2, 10)
