"""The FedGP paper's tables as configurations: all of them load, and the papers' cells stand beside the right runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fdamed.cli.commands import partition as partition_command
from fdamed.cli.main import main
from fdamed.config import loader as configfile
from fdamed.config.datasets import Benchmark
from fdamed.config.split import Partition
from fdamed.config.study import Config
from fdamed.data.benchmark.partition import partition
from fdamed.data.benchmark.samples import Samples
from fdamed.data.benchmark.sources import numbered_alike
from fdamed.pipeline.paths import Places
from tests.support.idx_files import write_idx

CONFIG = Path(__file__).resolve().parents[2] / "config"
FEDGP = CONFIG / "fedgp"
ALONE = ["cifar10", "colored_mnist", "colored_fashion", "vlcs", "terra_incognita"]
OVER = {  # a file below config/fedgp -> what it is laid over
    "auto": "fashion_mnist",
    "target_lr": "fashion_mnist",
    "projection": "fashion_mnist",
    "beta": "fashion_mnist",
    "beta_cifar10": "cifar10",
    "beta_colored": "colored_mnist",
}
COLUMNED = ["label_shift", "classes"]  # a file with the first column, and a folder with the others


def files() -> list[tuple[Path, ...]]:
    """Every configuration of the paper's tables, as it is given to Snakemake."""
    out: list[tuple[Path, ...]] = [(CONFIG / f"{name}.yaml",) for name in ALONE]
    for path in sorted(FEDGP.rglob("*.yaml")):
        if path.parent != FEDGP:
            out.append((FEDGP / f"{path.parent.name}.yaml", path))
        elif path.stem in OVER:
            out.append((CONFIG / f"{OVER[path.stem]}.yaml", path))
        else:
            out.append((path,))
    return out


def study(name: str, column: str = "") -> Config:
    own = FEDGP / f"{name}.yaml"
    if column:
        return configfile.load(own, FEDGP / name / f"{column}.yaml")
    if name in OVER:
        return configfile.load(CONFIG / f"{OVER[name]}.yaml", own)
    return configfile.load(own if own.is_file() else CONFIG / f"{name}.yaml")


def cell(config: Config, run: str, target: str = "") -> float:
    assert config.published is not None
    value = config.published.values[run]
    return value[target] if isinstance(value, dict) else value


@pytest.mark.parametrize("paths", files(), ids=lambda p: p[-1].stem)
def test_every_table_loads_and_its_cells_name_runs_of_the_study(paths: tuple[Path, ...]) -> None:
    config = configfile.load(*paths)
    assert isinstance(config.data, Benchmark) and isinstance(config.split, Partition)
    assert len(config.seeds) >= 3
    if config.published is not None:
        assert set(config.published.values) <= set(config.expanded_runs())
        figures = [v for f in config.published.values.values() for v in (f.values() if isinstance(f, dict) else (f,))]
        assert all(0 <= v <= 100 for v in figures)
    for run in config.expanded_runs().values():
        assert config.train_of(run).rounds - int(run.options.get("warmup", 0)) in (50, 52), "the paper's 50 rounds"


@pytest.mark.parametrize("paths", files(), ids=lambda p: p[-1].stem)
def test_the_command_in_a_files_head_is_the_one_that_uses_it(paths: tuple[Path, ...]) -> None:
    names = " ".join(str(p.relative_to(CONFIG.parent)) for p in paths)
    assert f"--configfile {names}\n" in paths[-1].read_text(encoding="utf-8")


def test_studies_with_other_hospitals_have_other_names() -> None:
    cuts: dict[str, set[str]] = {}
    for paths in files():
        config = configfile.load(*paths)
        cuts.setdefault(config.study, set()).add(config.split.model_dump_json() + config.data.model_dump_json())
    assert all(len(different) == 1 for different in cuts.values()), cuts.keys()
    table_6 = study("fashion_mnist")
    assert cuts["fashion_mnist"] == {table_6.split.model_dump_json() + table_6.data.model_dump_json()}


@pytest.mark.parametrize("name", ["auto", "projection", "beta", "target_lr"])
def test_rows_laid_over_table_6_leave_its_runs_as_they_are(name: str) -> None:
    table_6, both = study("fashion_mnist"), study(name)
    runs = both.expanded_runs()
    assert all(runs[key] == run for key, run in table_6.expanded_runs().items())
    assert both.train == table_6.train and both.model == table_6.model
    assert table_6.published is not None and both.published is not None
    assert table_6.published.values.items() <= both.published.values.items()


@pytest.mark.parametrize("name", COLUMNED)
def test_a_column_replaces_every_cell_of_the_first(name: str) -> None:
    first = study(name).published
    assert first is not None
    for path in sorted((FEDGP / name).glob("*.yaml")):
        own = configfile.read(path)["published"]
        assert own["values"].keys() == first.values.keys() and own["source"] != first.source


def test_the_columns_are_the_papers() -> None:
    etas = {float(p.stem.removeprefix("eta_")) for p in (FEDGP / "label_shift").glob("*.yaml")}
    assert etas | {0.45} == {0.45, 0.30, 0.15, 0.10, 0.05, 0.0}
    for eta in etas:
        config = study("label_shift", f"eta_{eta:.2f}")
        assert isinstance(config.split, Partition) and config.split.eta == eta
        assert config.study == f"fashion_shift_{100 * eta:03.0f}"
    for each in (7, 5, 3):
        config = study("classes", f"each_{each}")
        assert isinstance(config.split, Partition) and config.split.classes_each == each and config.split.noise == 0.4


@pytest.mark.parametrize(
    ("where", "run", "target", "per_cent"),
    [
        (("auto",), "fedda_auto-noise-0.4", "", 72.68),
        (("auto",), "fedgp_auto-noise-0.4", "", 71.46),
        (("auto",), "fedgp-noise-0.4", "", 71.09),
        (("projection",), "fedgp_unfiltered-noise-0.6", "", 65.46),
        (("labeled",), "fedda-noise-0.4-labeled-200", "", 58.59),
        (("labeled",), "fedgp-noise-0.6-labeled-1000", "", 71.63),
        (("labeled",), "fedda_auto-noise-0.4-labeled-100", "", 72.21),
        (("label_shift",), "fedavg", "", 83.97),
        (("label_shift", "eta_0.10"), "fedgp", "", 88.72),
        (("label_shift", "eta_0.05"), "fedgp_1", "", 27.62),
        (("label_shift", "eta_0.00"), "finetune_offline", "", 33.25),
        (("classes",), "fedgp", "", 68.50),
        (("classes", "each_7"), "finetune_offline", "", 64.75),
        (("classes", "each_3"), "fedavg", "", 25.54),
        (("classes", "each_5"), "fedgp_1", "", 39.86),
        (("cifar10",), "fedgp-noise-0.2", "", 66.40),
        (("cifar10",), "oracle-noise-0.8", "", 68.50),
        (("beta_cifar10",), "fedgp_beta-beta-0.6", "", 65.31),
        (("colored_mnist",), "fedgp", "minus90", 89.80),
        (("colored_mnist",), "finetune_offline", "plus80", 69.09),
        (("beta_colored",), "fedda_beta-beta-0.4", "minus90", 54.19),
        (("vlcs",), "fedgp", "S", 78.70),
        (("vlcs",), "fedda", "V", 75.27),
        (("terra_incognita",), "target_only", "L43", 58.96),
        (("terra_incognita",), "kd3a", "L46", 28.4),
    ],
)
def test_cells_read_off_the_papers(where: tuple[str, ...], run: str, target: str, per_cent: float) -> None:
    assert cell(study(*where), run, target) == per_cent


@pytest.mark.parametrize(
    ("name", "averages"),
    [
        (
            "colored_mnist",
            {"fedavg": 48.99, "finetune_offline": 63.18, "fedda": 52.87, "fedgp": 84.76, "oracle": 86.75},
        ),
        ("vlcs", {"fedavg": 72.62, "finetune_offline": 78.47, "fedda": 79.46, "fedgp": 80.72, "target_only": 78.74}),
        ("terra_incognita", {"fedavg": 37.50, "fedda": 64.70, "fedgp": 71.24, "target_only": 67.24, "kd3a": 38.98}),
        ("vlcs", {"fedda_auto": 83.75, "fedgp_auto": 83.81, "oracle": 83.52}),
        ("terra_incognita", {"fedda_auto": 74.60, "fedgp_auto": 74.36, "finetune_offline": 68.18, "oracle": 93.11}),
        ("colored_mnist", {"target_only": 82.06, "fedgp_auto": 84.10}),
    ],
)
def test_the_cells_of_a_row_have_the_average_that_the_paper_prints(name: str, averages: dict[str, float]) -> None:
    config = study(name)
    for run, average in averages.items():
        mean = np.mean([cell(config, run, target) for target in config.split.targets])
        assert mean == pytest.approx(average, abs=0.0101), run


def test_auto_weighting_trains_as_the_authors_script() -> None:
    config = study("auto")
    for name in ("fedda_auto-noise-0.4", "fedgp_auto-noise-0.4"):
        run = config.expanded_runs()[name]
        assert config.train_of(run).target.batch == 4 and run.options["pace"] == 0.1 and run.options["warmup"] == 2
        assert config.train_of(run).source == config.train.source and run.noise == 0.4
    options = config.expanded_runs()["fedgp_auto-noise-0.4"].options
    assert (options["estimator"], options["projection"], options["weighting"]) == ("threshold", "cosine", "samples")


def test_plus_90_per_cent_is_a_correlation_of_four_fifths() -> None:
    for name in ("colored_mnist", "colored_fashion"):
        data = study(name).data
        assert isinstance(data, Benchmark)
        agree = {key: round((1 + domain.correlation) / 2, 6) for key, domain in data.domains.items()}
        assert agree == {"plus90": 0.9, "plus80": 0.8, "minus90": 0.1}


def test_a_set_without_a_class_keeps_the_numbers_of_the_others() -> None:
    blank = np.zeros((2, 4, 4, 3), np.uint8)
    sets = {
        "L38": Samples(blank, np.array([0, 1]), np.array([False, True]), ("bird", "dog")),
        "L43": Samples(blank, np.array([1, 2]), np.array([False, True]), ("bird", "cat", "dog")),
        "digits": Samples(blank, np.array([7, 1]), np.array([False, True])),
    }
    alike = numbered_alike(sets)
    assert alike["L38"].y.tolist() == [0, 2] and alike["L43"].y.tolist() == [1, 2]
    assert alike["L38"].names == ("bird", "cat", "dog")
    assert alike["digits"].y.tolist() == [7, 1]
    cut = Partition(by="domain", domains=("L38", "L43"), target="L38", labeled=1)
    assert partition(sets, cut)["L38"].order["y"].tolist() == [0, 2]


def test_the_files_of_colored_fashion_become_three_hospitals(tmp_path: Path) -> None:
    write_idx(tmp_path / "idx", train=300, test=60)
    config = _tiny(tmp_path, "colored_fashion", tmp_path / "idx", per_source=100)
    partition_command.write(config, Places.of(config))
    for name, agree in (("plus90", 0.9), ("plus80", 0.8), ("minus90", 0.1)):
        folder = Places.of(config).client(name)
        images, order = np.load(folder / "images.npy"), _order(folder)
        assert images.shape == (178, 28, 28, 3) and images[..., 2].max() == 0
        assert order["split"].value_counts().to_dict() == {"train": 100, "test": 60, "adapt": 18}
        red = images[..., 0].any(axis=(1, 2))
        assert np.mean(red == (order["y"] == 1)) == pytest.approx(agree, abs=0.08)


def test_what_the_sources_learn_of_colors_is_wrong_where_the_colors_are_exchanged(tmp_path: Path) -> None:
    write_idx(tmp_path / "idx", train=900, test=200)
    config = _tiny(tmp_path, "colored_fashion", tmp_path / "idx", per_source=600, rounds=4)
    (tmp_path / "tiny.json").write_text(config.model_dump_json())
    given = ["--config", str(tmp_path / "tiny.json")]
    assert main(["partition", *given]) == 0 and main(["init", *given, "--seed", "0"]) == 0
    accuracy = {}
    for name in ("fedavg", "fedgp", "fedgp_auto", "oracle"):
        run = ["--run", name, "--target", "minus90"]
        assert main(["federate", *given, *run, "--seed", "0"]) == 0
        assert main(["evaluate", *given, *run, "--client", "minus90", "--seeds", "0"]) == 0
        folder = Places.of(config).run(name, "minus90", 0)
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == 4
        accuracy[name] = json.loads((folder / "scores" / "minus90.json").read_text())["acc"]
    assert accuracy["fedavg"] < 0.3 and accuracy["oracle"] > 0.7


def test_pictures_in_folders_become_the_four_hospitals_of_vlcs(tmp_path: Path) -> None:
    from PIL import Image

    config = _tiny(tmp_path, "vlcs", tmp_path / "VLCS", size=32)
    assert isinstance(config.data, Benchmark)
    for place, domain in enumerate(config.data.domains.values()):
        for label, name in enumerate(("bird", "car", "chair", "dog", "person")):
            (Path(domain.root) / name).mkdir(parents=True)
            for i in range(12):
                shade = (50 * label, 60 * place, 10 * i)
                Image.new("RGB", (40, 30), shade).save(Path(domain.root) / name / f"{i}.png")
    partition_command.write(config, Places.of(config))
    for place, client in enumerate(("C", "L", "V", "S")):
        folder = Places.of(config).client(client)
        images, order = np.load(folder / "images.npy"), _order(folder)
        assert images.shape == (60, 32, 32, 3)
        assert (images[:, 0, 0, 0] == 50 * order["y"]).all() and (images[..., 1] == 60 * place).all()
        counts = order["split"].value_counts()
        assert counts["adapt"] == round(0.05 * (60 - counts["test"])) and 4 <= counts["test"] <= 20


def _order(folder: Path):
    import pandas as pd

    return pd.read_parquet(folder / "order.parquet")


def _tiny(
    folder: Path,
    name: str,
    root: Path,
    size: int | None = None,
    per_source: int | None = None,
    rounds: int | None = None,
) -> Config:
    """A configuration of the repository with its data and results below `folder`."""
    raw = configfile.read(CONFIG / f"{name}.yaml")
    for domain in raw["data"]["domains"].values():
        domain["root"] = str(root / Path(domain["root"]).name) if domain["kind"] == "folder" else str(root)
    raw["image"] |= {"size": size} if size else {}
    raw["split"] |= {"per_source": per_source} if per_source else {}
    raw["train"] |= {"rounds": rounds, "device": "cpu"} if rounds else {}
    return configfile.parse(raw | {"results": str(folder / "results")}, name)
