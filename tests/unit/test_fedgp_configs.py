"""The FedGP paper's tables as configurations: all of them load, and the papers' cells stand beside the right runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fdamed.cli.commands import partition as partition_command
from fdamed.cli.main import main
from fdamed.config import loader as configfile
from fdamed.config.base import digest_sections
from fdamed.config.datasets import Benchmark
from fdamed.config.split import Partition
from fdamed.config.study import Config
from fdamed.data.benchmark.partition import partition
from fdamed.data.benchmark.samples import Samples, numbered_alike
from fdamed.pipeline.paths import Places
from fdamed.pipeline.selection import StudyRun
from tests.support.idx_files import write_idx

FEDGP = Path(__file__).resolve().parents[2] / "config" / "papers" / "fedgp"
COLUMNED = ["label_shift", "classes"]  # the first column of a table; the others are variants


def tables() -> list[tuple[str, str | None]]:
    """Every table of the paper: a file and, where it has some, each of its variants."""
    files = sorted(FEDGP.glob("*.yaml"))
    return [(p.stem, v) for p in files for v in (None, *configfile.read(p).get("variants", ()))]


def study(name: str, variant: str | None = None) -> Config:
    return configfile.load(FEDGP / f"{name}.yaml", variant=variant)


def cell(config: Config, run: str, target: str = "") -> float:
    assert config.published is not None
    value = config.published.values[run]
    return value[target] if isinstance(value, dict) else value


@pytest.mark.parametrize(("name", "variant"), tables())
def test_every_table_loads_and_its_cells_are_percentages(name: str, variant: str | None) -> None:
    config = study(name, variant)
    assert isinstance(config.data, Benchmark) and isinstance(config.split, Partition)
    assert len(config.seeds) >= 3
    if config.published is not None:
        figures = [v for f in config.published.values.values() for v in (f.values() if isinstance(f, dict) else (f,))]
        assert all(0 <= v <= 100 for v in figures)
    for run in config.expanded_runs().values():
        warmup = run.warmup.rounds if run.warmup else 0
        assert config.train_of(run).rounds - warmup in (50, 52), "the paper's 50 rounds"


def test_studies_with_other_clients_have_other_names() -> None:
    splits: dict[str, set[str]] = {}
    for table in tables():
        config = study(*table)
        splits.setdefault(config.study, set()).add(digest_sections(config.split, config.data))
    assert all(len(different) == 1 for different in splits.values()), splits.keys()


@pytest.mark.parametrize("variant", ["auto", "projection", "beta", "target_lr"])
def test_variants_of_table_6_only_add_runs(variant: str) -> None:
    table_6, both = study("fashion_mnist"), study("fashion_mnist", variant)
    runs = both.expanded_runs()
    assert all(runs[key] == run for key, run in table_6.expanded_runs().items())
    assert both.train == table_6.train and both.model == table_6.model and both.study == table_6.study
    assert table_6.published is not None and both.published is not None
    assert table_6.published.values.items() <= both.published.values.items()


@pytest.mark.parametrize("name", COLUMNED)
def test_a_column_replaces_every_cell_of_the_first(name: str) -> None:
    first = study(name).published
    assert first is not None
    for variant in configfile.read(FEDGP / f"{name}.yaml")["variants"].values():
        own = variant["published"]
        assert own["values"].keys() == first.values.keys() and own["source"] != first.source


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
        accuracy[name] = json.loads(StudyRun.of(config, name, "minus90", 0).scores("minus90").read_text())["acc"]
    assert accuracy["fedavg"] < 0.3 and accuracy["oracle"] > 0.7


def test_images_in_folders_become_the_four_hospitals_of_vlcs(tmp_path: Path) -> None:
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
    raw = configfile.read(FEDGP / f"{name}.yaml")
    for domain in raw["data"]["domains"].values():
        domain["root"] = str(root / Path(domain["root"]).name) if domain["kind"] == "folder" else str(root)
    raw["image"] |= {"size": size} if size else {}
    raw["split"] |= {"per_source": per_source} if per_source else {}
    raw["train"] |= {"rounds": rounds, "device": "cpu"} if rounds else {}
    return configfile.parse(raw | {"results": str(folder / "results")}, name)
