"""The FedRF-TCA paper's tables as configurations: all of them load, and its cells stand beside the right runs."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

import fdamed.methods  # noqa: F401
from fdamed.config import loader as configfile
from fdamed.config.datasets import Benchmark
from fdamed.config.split import Partition
from fdamed.config.study import Config
from fdamed.federation.method import REGISTRY
from fdamed.methods.fedrf_tca.method import FedRfTca
from fdamed.models.backbone import build
from fdamed.models.flat import layout_of

CONFIG = Path(__file__).resolve().parents[2] / "config"
OWN = CONFIG / "papers" / "fedrf_tca"
TABLES = [("digit_five", ""), *(("digit_five", v) for v in ("messages", "order", "interval")), ("office_caltech", "")]
PAPER = {
    "local_steps": 1,
    "frequencies": 1000,
    "components": 800,
    "trained_from": "trunk.layer4",
    "normalize_w": False,
    "target_pace": 1.0,
    "means": "batch",
}
"""What the paper's rows have in common; W of N = 1000 and m = 800 is 6.4 MB."""
COHORTS = [
    *("chexpert", "mimic", "midrc", "chexpert_phantom", "mimic_phantom", "midrc_phantom"),
    *("nih", "papers/fedrf_tca/digits", "papers/healthcare/nih_sample", "papers/healthcare/nih_view"),
]


def study(name: str, variant: str = "") -> Config:
    return configfile.load(OWN / f"{name}.yaml", variant=variant or None)


def cells(config: Config, run: str) -> dict[str, float]:
    assert config.published is not None
    found = config.published.values[run]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(("name", "variant"), TABLES)
def test_every_table_loads_as_the_paper_has_it(name: str, variant: str) -> None:
    config = study(name, variant)
    assert isinstance(config.data, Benchmark) and isinstance(config.split, Partition)
    assert config.split.targets == config.split.domains and len(config.seeds) == 3
    assert config.model.backbone == "resnet50"
    for row, run in config.expanded_runs().items():
        method = REGISTRY[run.method](**run.options)
        if run.method == "fedrf_tca" and row != "warm":
            assert {k: getattr(method, k) for k in PAPER} == PAPER and run.warmup is None
            assert config.train_of(run).rounds == (1600 if config.study == "digit_five" else 1000)


@pytest.mark.parametrize("variant", ["messages", "order", "interval"])
def test_a_variant_only_adds_runs(variant: str) -> None:
    below, both = study("digit_five"), study("digit_five", variant)
    assert below.expanded_runs().items() <= both.expanded_runs().items()
    assert below.split == both.split and below.train == both.train and below.study == both.study
    assert below.published is not None and both.published is not None
    assert below.published.values.items() <= both.published.values.items()


def test_tables_v_and_xiv_have_the_printed_means() -> None:
    """Printed: 67.3 for I; 60.8 for IV and 62.23 for V, whose cells have means of 60.9 and 62.3."""
    config = study("digit_five")
    means = {s: statistics.mean(cells(config, s).values()) for s in ("I", "IV", "V")}
    assert means == pytest.approx({"I": 67.3, "IV": 60.92, "V": 62.32}, abs=0.01)
    assert {s: config.expanded_runs()[s].options["setting"] for s in means} == {s: s for s in means}


def test_tables_iv_and_xiii_have_the_printed_means() -> None:
    config = study("office_caltech")
    means = {s: statistics.mean(cells(config, s).values()) for s in ("I", "II", "III", "IV", "V")}
    assert means == pytest.approx({"I": 95.0, "II": 95.5, "III": 95.475, "IV": 93.775, "V": 93.475}, abs=0.01)


def test_table_ii_loses_messages_at_an_interval_of_fifty() -> None:
    config = study("digit_five", "messages")
    for row, setting in (("msg_I", "msg-I"), ("msg_II", "msg-II"), ("msg_III", "msg-III")):
        options = config.expanded_runs()[row].options
        assert options["setting"] == setting and "T_C" not in options  # the setting's own: 50


def test_figures_4_and_6_go_over_the_interval_under_the_first_setting_of_table_ii() -> None:
    config = study("digit_five", "interval")
    runs = [config.expanded_runs()[f] for f, place in config.sweeps().items() if place.run == "interval"]
    assert [r.options["T_C"] for r in runs] == [10, 20, 50, 100, 200, 400, 800, 1600]
    assert {r.options["setting"] for r in runs} == {"msg-I"}


def test_table_iii_has_a_study_for_each_pair_and_the_paper_s_average() -> None:
    pairs = [study("office_31", v) for v in ("", "A_W", "D_A", "D_W", "W_A", "W_D")]
    assert len({p.study for p in pairs}) == 6
    assert all(f"office_31_{p.split.sets[0]}_{p.split.target}" == p.study for p in pairs)
    assert statistics.mean(p.published.values["I"] for p in pairs) == pytest.approx(77.46, abs=0.01)
    assert all(p.expanded_runs()["I"].options == PAPER | {"setting": "I"} for p in pairs)


def test_table_xv_orders_the_messages_of_a_vote() -> None:
    config = study("digit_five", "order")
    settings = {row: config.expanded_runs()[row].options["setting"] for row in ("order_B", "order_C", "order_D")}
    assert settings == {"order_B": "vote-B", "order_C": "vote-C", "order_D": "vote-D"}


@pytest.mark.parametrize("cohort", COHORTS)
def test_every_cohort_has_the_row_with_a_warm_up_that_leaves_it_rounds(cohort: str) -> None:
    config = configfile.load(CONFIG / f"{cohort}.yaml")
    run = config.expanded_runs()["fedrf_tca"]
    train = config.train_of(run)
    assert run.warmup.method == "fedavg" and run.warmup.rounds < train.rounds
    assert min(train.source.batch, train.target.batch) >= config.privacy.smallest_batch


@pytest.mark.parametrize("name", ["papers/fedrf_tca/digit_five", "papers/fedrf_tca/digits", "chexpert_phantom"])
def test_the_layer_from_which_on_the_extractor_learns_is_one_of_the_network(name: str) -> None:
    config = configfile.load(CONFIG / f"{name}.yaml")
    layout = layout_of(build(config.model))
    for run in config.expanded_runs().values():
        if run.method == "fedrf_tca":
            method = FedRfTca(**run.options)
            assert 0 < method.frozen_parameters(layout) < layout.trainable
