"""Sources from one public set and the target from another, also when the other is a shifted copy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fdamed.cli.commands import partition as partition_command
from fdamed.config import loader as configfile
from fdamed.config.datasets import Domain, Moved
from fdamed.config.split import Partition
from fdamed.core.errors import FdamedError
from fdamed.core.files import read_json
from fdamed.data.benchmark.partition import partition
from fdamed.data.benchmark.samples import Samples, shifted
from fdamed.data.benchmark.sources import read
from fdamed.data.splitting.leakage import Leakage, count_leaks
from fdamed.pipeline.paths import Places
from tests.support.idx_files import write_idx


def samples(n: int, test: int, origin: str) -> Samples:
    x = np.arange(n, dtype=np.uint32).view(np.uint8).reshape(n, 2, 2)
    return Samples(x, np.arange(n) % 10, np.arange(n) >= n - test, (), origin)


def leaks(parts: dict) -> Leakage:
    return count_leaks({client: part.order for client, part in parts.items()})


def ids(part, *splits: str) -> set[str]:
    return set(part.order.loc[part.order["split"].isin(splits), "image"])


CUTS = [
    Partition(by="classes", n_clients=10, classes_each=2, sources="a", target="b", labeled=20),
    Partition(by="dirichlet", n_clients=10, sources="a", target="b", labeled=20),
    Partition(by="iid", n_clients=10, sources="a", target="b", labeled=20, val=0.1),
]


@pytest.mark.parametrize("cut", CUTS, ids=lambda c: c.by)
def test_a_shifted_copy_of_a_sources_sample_is_never_at_the_target(cut: Partition) -> None:
    sets = {"a": samples(1300, 200, "files"), "b": samples(1300, 200, "files")}
    parts = partition(sets, cut)
    assert list(parts) == [*(f"C{i}" for i in range(10)), "b"]
    sources = set().union(*(ids(parts[f"C{i}"], "train") for i in range(10)))
    everything = [i for p in parts.values() for i in p.order["image"]]
    assert len(everything) == len(set(everything)) and leaks(parts) == Leakage(0, 0, 0)
    assert len(sources) == 990 and not sources & set(parts["b"].order["image"])
    assert ids(parts["b"], "test") == {f"a/{r}" for r in range(1100, 1300)}, "the released test part"
    assert len(parts["b"].order) == 110 + 200
    more = partition(sets, cut.model_copy(update={"n_clients": 20}))
    assert more["b"].order.equals(parts["b"].order), "the target does not depend on the number of clients"


def test_sets_of_different_files_are_used_whole() -> None:
    sets = {"a": samples(600, 100, "mnist"), "b": samples(900, 300, "mnist_m")}
    cut = Partition(by="classes", n_clients=10, classes_each=2, sources="a", target="b", labeled="all")
    parts = partition(sets, cut)
    assert sum(len(parts[f"C{i}"].order) for i in range(10)) == 500
    assert {parts[f"C{i}"].order["y"].nunique() for i in range(10)} == {2}
    assert parts["b"].order["split"].value_counts().to_dict() == {"adapt": 600, "test": 300}
    assert all(name.startswith("b/") for name in parts["b"].order["image"])


def test_a_sample_in_two_hospitals_would_be_counted() -> None:
    parts = partition(
        {"a": samples(130, 20, "f"), "b": samples(130, 20, "f")}, CUTS[2].model_copy(update={"labeled": 2})
    )
    parts["C0"] = parts["b"]
    assert leaks(parts).patients_in_two_clients == len(parts["b"].order)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"by": "label_shift", "first_group": [1], "test": 0.5}, "goes with by: iid"),
        ({"target": ""}, "names another set"),
        ({"target": "a"}, "names another set"),
        ({"target": "C3"}, "a client's name"),
        ({"target": "c"}, "names c, which is not in"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: dict, reason: str) -> None:
    domain = {"kind": "idx", "root": "x"}
    raw = {
        "study": "t",
        "data": {"layout": "benchmark", "domains": {"a": domain, "b": domain}},
        "split": {"by": "iid", "n_clients": 10, "sources": "a", "target": "b"} | wrong,
        "runs": {"fedavg": {}},
    }
    with pytest.raises(FdamedError, match=reason):
        configfile.parse(raw, "here")


def test_turning_by_ninety_degrees_moves_every_pixel_to_its_place() -> None:
    x = np.arange(32, dtype=np.uint8).reshape(2, 4, 4)
    assert (shifted(x, Moved(rotate=90), "x") == np.rot90(x, axes=(1, 2))).all()
    colors = np.stack([x, x + 40, x + 80], axis=-1)
    assert (shifted(colors, Moved(rotate=-90), "x") == np.rot90(colors, -1, axes=(1, 2))).all()


def test_inversion_and_noise_do_what_they_say_and_the_same_each_time() -> None:
    x = np.full((500, 8, 8), 128, np.uint8)
    assert (shifted(x, Moved(invert=True), "x") == 127).all()
    noisy = shifted(x, Moved(noise=0.1), "x")
    assert (noisy == shifted(x, Moved(noise=0.1), "x")).all()
    assert noisy.std() == pytest.approx(25.5, rel=0.02) and not (noisy[0] == noisy[1]).all()
    with pytest.raises(FdamedError, match="only images"):
        shifted(np.zeros((3, 5), np.float32), Moved(invert=True), "x")


def test_the_files_of_a_shifted_target_come_from_rows_that_no_source_has(tmp_path: Path) -> None:
    write_idx(tmp_path / "idx", train=400, test=100)
    base = {"kind": "idx", "root": str(tmp_path / "idx")}
    raw = {
        "study": "t",
        "results": str(tmp_path / "results"),
        "data": {"layout": "benchmark", "domains": {"plain": base, "turned": base | {"shift": {"rotate": 30}}}},
        "split": {
            "by": "classes", "n_clients": 7, "classes_each": 2, "sources": "plain", "target": "turned", "labeled": 20,
        },
        "image": {"size": 28},
        "model": {"backbone": "cnn", "classes": 10},
        "runs": {"fedavg": {}},
    }  # fmt: skip
    config = configfile.parse(raw, "here")
    partition_command.write(config, Places.of(config))
    import pandas as pd

    orders = {p: pd.read_parquet(Places.of(config).client(p) / "order.parquet") for p in config.split.clients}
    everything = pd.concat(orders.values())["image"]
    assert everything.is_unique and everything.str.startswith("plain/").all()
    images = np.load(Places.of(config).client("turned") / "images.npy")
    place = int(orders["turned"]["image"].iloc[0].removeprefix("plain/"))
    turned = read(Domain(kind="idx", root=base["root"], shift=Moved(rotate=30)), "x")
    assert (images[0] == turned.x[place]).all()
    assert read_json(Places.of(config).root / "clients/leakage.json")["patients_in_two_clients"] == 0


def test_mnist_m_is_read_with_its_released_test_part(tmp_path: Path) -> None:
    from PIL import Image

    for part, labels in (("train", [5, 0, 4]), ("test", [7, 2])):
        (tmp_path / f"mnist_m_{part}").mkdir()
        lines = [f"{i:08d}.png {label}" for i, label in enumerate(labels)]
        (tmp_path / f"mnist_m_{part}_labels.txt").write_text("\n".join(lines) + "\n")
        for i, label in enumerate(labels):
            Image.new("RGB", (32, 32), (label, 100, 200)).save(tmp_path / f"mnist_m_{part}" / f"{i:08d}.png")
    found = read(Domain(kind="mnist_m", root=str(tmp_path)), "x")
    assert found.x.shape == (5, 32, 32, 3) and found.y.tolist() == [5, 0, 4, 7, 2]
    assert found.x[:, 0, 0, 0].tolist() == found.y.tolist() and found.test.tolist() == [False] * 3 + [True] * 2
    (tmp_path / "mnist_m_test_labels.txt").write_text("nothing\n")
    with pytest.raises(FdamedError, match="no set of kind `mnist_m`"):
        read(Domain(kind="mnist_m", root=str(tmp_path)), "x")
