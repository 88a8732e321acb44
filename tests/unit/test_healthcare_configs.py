"""The methods that train on the sources only, as overlays on the three studies and their phantoms."""

from __future__ import annotations

from pathlib import Path

import pytest

from fdamed.config import loader as configfile
from fdamed.config.study import Config

CONFIG = Path(__file__).resolve().parents[2] / "config"
OVERLAY = CONFIG / "papers" / "healthcare" / "transfer.yaml"
COHORTS = ["chexpert", "mimic", "midrc", "chexpert_phantom", "mimic_phantom", "midrc_phantom"]
METHODS = ["fedprox", "scaffold", "fedsr", "fediir", "fedgtst"]


def study(cohort: str) -> Config:
    return configfile.load(CONFIG / f"{cohort}.yaml", OVERLAY)


@pytest.mark.parametrize("cohort", COHORTS)
def test_each_of_the_five_is_a_row_of_every_cohort_alone_and_with_auxinfo(cohort: str) -> None:
    config = study(cohort)
    runs = config.expanded_runs()
    for name in METHODS:
        alone, taught = runs[name], runs[f"{name}_auxinfo"]
        assert alone.method == taught.method == name and alone.auxiliary is None
        assert taught.auxiliary is not None and set(taught.auxiliary.heads) <= set(config.model.heads)
        assert taught.auxiliary.alpha == 1.0
        assert alone.options == taught.options and config.train_of(alone) == config.train_of(taught)


@pytest.mark.parametrize("cohort", COHORTS)
def test_a_new_head_is_trained_at_the_target_of_every_cohort(cohort: str) -> None:
    config = study(cohort)
    for name in ("fedavg", "fedgtst"):
        first, second = config.phases(config.expanded_runs()[f"{name}_head"]).values()
        assert (first.method, second.method) == (name, "finetune_head")
        assert config.train_of(second).rounds == config.train.rounds


@pytest.mark.parametrize("cohort", COHORTS)
def test_scaffold_and_the_fedavg_beside_it_train_with_the_same_plain_descent(cohort: str) -> None:
    config = study(cohort)
    runs = config.expanded_runs()
    scaffold, partner = runs["scaffold"], runs["fedavg_sgd"]
    assert partner.method == "fedavg" and config.train_of(scaffold) == config.train_of(partner)
    assert config.train_of(scaffold).source.optimizer == "sgd" and scaffold.options.get("variate", "II") == "II"


@pytest.mark.parametrize("cohort", COHORTS)
def test_the_rows_of_the_cohort_itself_stay_as_they_are(cohort: str) -> None:
    alone, both = configfile.load(CONFIG / f"{cohort}.yaml"), study(cohort)
    runs = both.expanded_runs()
    assert all(runs[key] == run for key, run in alone.expanded_runs().items())
    assert alone.model_dump(exclude={"runs"}) == both.model_dump(exclude={"runs"})
