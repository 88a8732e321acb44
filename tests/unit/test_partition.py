"""Public data sets become clients: no sample is in two, and each scheme follows its paper."""

from __future__ import annotations

import numpy as np
import pytest

from fdamed.config.split import Partition
from fdamed.core.errors import FdamedError
from fdamed.data.benchmark.partition import partition, repeated
from fdamed.data.benchmark.samples import Samples


def samples(n: int = 1200, test: int = 200, classes: int = 10) -> Samples:
    x = np.arange(n, dtype=np.uint32).view(np.uint8).reshape(n, 2, 2)
    return Samples(x, np.arange(n) % classes, np.arange(n) >= n - test)


def rows(part: object, *splits: str) -> set[str]:
    order = part.order  # type: ignore[attr-defined]
    return set(order.loc[order["split"].isin(splits), "image"])


@pytest.mark.parametrize(
    "cut",
    [
        Partition(by="iid", n_clients=10, labeled=20),
        Partition(by="classes", n_clients=9, classes_each=3, labeled=20, val=0.1),
        Partition(by="dirichlet", n_clients=5, concentration=0.3, labeled=20),
        Partition(by="label_shift", n_clients=5, first_group=(6, 8, 9), eta=0.1, labeled=0.15, test=0.85),
    ],
    ids=lambda c: str(c.by),
)
def test_no_sample_stands_twice(cut: Partition) -> None:
    parts = partition({"set": samples()}, cut)
    everything = [i for p in parts.values() for i in p.order["image"]]
    assert len(everything) == len(set(everything))
    assert list(parts) == list(cut.clients)
    for part in parts.values():
        assert len(part.x) == len(part.order)
        assert (part.x.reshape(len(part.x), -1).view(np.uint32).ravel() % 10 == part.order["y"].to_numpy()).all()


def test_iid_gives_nine_sources_and_a_target_with_the_released_test() -> None:
    parts = partition({"set": samples()}, Partition(by="iid", n_clients=10, labeled=20))
    assert [len(parts[f"C{i}"].order) for i in range(9)] == [100] * 9
    assert parts["C9"].order["split"].value_counts().to_dict() == {"test": 200, "train": 80, "adapt": 20}


def test_a_source_has_just_its_few_classes_and_the_target_all() -> None:
    parts = partition({"set": samples()}, Partition(by="classes", n_clients=9, classes_each=3, labeled=50))
    assert {parts[f"C{i}"].order["y"].nunique() for i in range(8)} == {3}
    assert all(i in set(parts[f"C{i}"].order["y"]) for i in range(8))
    assert parts["C8"].order["y"].nunique() == 10


def test_label_shift_mixes_the_groups_by_eta() -> None:
    cut = Partition(by="label_shift", n_clients=4, first_group=(0, 1, 2), eta=0.1, labeled=0.15, test=0.85)
    parts = partition({"set": samples(10_000, 0)}, cut)
    first = {p: part.order["y"].isin((0, 1, 2)).sum() for p, part in parts.items()}
    assert first["C3"] == 2700 and len(parts["C3"].order) == 2700 + 700
    assert sum(first[f"C{i}"] for i in range(3)) == 300
    assert parts["C3"].order["split"].value_counts().to_dict() == {"test": 2890, "adapt": 510}


def test_a_smaller_concentration_makes_the_shares_less_even() -> None:
    spread = {}
    for concentration in (0.1, 100.0):
        parts = partition({"set": samples(5000)}, Partition(by="dirichlet", n_clients=5, concentration=concentration))
        counts = np.array([np.bincount(parts[f"C{i}"].order["y"], minlength=10) for i in range(4)])
        spread[concentration] = counts.std(axis=0).mean()
    assert spread[0.1] > 5 * spread[100.0]


def test_each_set_is_a_hospital_and_can_be_the_target() -> None:
    sets = {"a": samples(300, 50), "b": samples(400, 100), "c": samples(200, 40)}
    cut = Partition(by="domain", domains=("a", "b", "c"), target="each", labeled=30, per_source=100)
    parts = partition(sets, cut)
    assert [len(rows(parts[d], "test")) for d in "abc"] == [50, 100, 40]
    assert [len(rows(parts[d], "train", "adapt")) for d in "abc"] == [130, 130, 130]


def test_the_same_seed_gives_the_same_hospitals_and_another_seed_others() -> None:
    first, again, other = (partition({"set": samples()}, Partition(by="iid", seed=s)) for s in (0, 0, 1))
    assert first["C0"].order.equals(again["C0"].order)
    assert not first["C0"].order.equals(other["C0"].order)


def test_copies_between_training_and_test_are_counted() -> None:
    s = samples()
    s.x[-1] = s.x[0]
    assert sum(repeated(partition({"set": s}, Partition(by="iid", n_clients=10, labeled=20))).values()) == 1


def test_more_labels_than_samples_are_refused() -> None:
    with pytest.raises(FdamedError, match="labeled asks for 500"):
        partition({"set": samples()}, Partition(by="iid", n_clients=10, labeled=500))
