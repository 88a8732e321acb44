"""`tune` in the configuration: its candidates, and one clear error for each mistake."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fdamed.config.base import without_defaults
from fdamed.config.loader import parse
from fdamed.config.runs import MOST
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError

SPLIT = {"by": "race", "label": "Edema", "clients": {"a": "White", "b": "Black"}, "target": "b", "labeled": 20}
RAW: dict[str, Any] = {
    "study": "s",
    "privacy": "public",
    "data": {"layout": "chexpert", "root": "x", "salt": "x"},
    "split": SPLIT,
}


def config(run: dict[str, Any], **changes: Any) -> Config:
    return parse(RAW | {"runs": {"gp": run}} | changes, "here")


def test_every_combination_is_a_candidate_in_the_place_of_the_run() -> None:
    tune = {"lr": [0.1, 0.2], "beta": [0.3, 0.4], "source.epochs": [1, 2]}
    study = config({"tune": tune, "train": {"target": {"epochs": 5}, "rounds": 9}})
    assert list(study.expanded_runs()) == ["gp"]
    runs = study.trained_runs()
    assert len(runs) == 8
    run = runs["gp-lr-0.2-beta-0.3-source.epochs-2"]
    assert run.tune is None and run.options == {"beta": 0.3}
    train = study.train_of(run)
    assert (train.rounds, train.source.lr, train.source.epochs) == (9, 0.2, 2)
    assert (train.target.lr, train.target.epochs) == (0.2, 5)


def test_a_sweep_of_a_tuned_run_has_candidates_at_each_of_its_values() -> None:
    study = config({"sweep": {"labeled": [8, 16]}, "tune": {"beta": [0.3, 0.4]}})
    assert list(study.expanded_runs()) == ["gp-labeled-8", "gp-labeled-16"]
    assert [(run.labeled, run.options["beta"]) for run in study.trained_runs().values()] == [
        (8, 0.3),
        (8, 0.4),
        (16, 0.3),
        (16, 0.4),
    ]


def test_a_candidate_is_the_run_written_out_so_that_another_list_trains_nothing_again() -> None:
    written = config({"beta": 0.3, "train": {"source": {"lr": 0.1}, "target": {"lr": 0.1}}}).expanded_runs()["gp"]
    for values in ([0.3, 0.4], [0.1, 0.2, 0.3]):
        tuned = config({"tune": {"beta": values, "lr": [0.1, 0.5]}}).trained_runs()["gp-beta-0.3-lr-0.1"]
        assert without_defaults(tuned) == without_defaults(written)


def test_numbers_with_an_exponent_are_numbers_as_yaml_and_json_write_them() -> None:
    study = config({"tune": {"lr": ["1e-3", "2.5E-4"]}})
    assert [study.train_of(run).source.lr for run in study.trained_runs().values()] == [0.001, 0.00025]
    assert list(study.trained_runs()) == ["gp-lr-0.001", "gp-lr-0.00025"]


MANY = {"beta": [i / 10 for i in range(10)], "lr": [0.1, 0.2, 0.3, 0.4]}
AUX = {"auxiliary": {"heads": ["sex"]}}
PRIVATE = {"multiplier": 1.0, "clip": 1.0, "delta": 1e-5}


@pytest.mark.parametrize(
    ("run", "changes", "said"),
    [
        ({"tune": {}}, {}, "`runs.gp.tune` is empty"),
        ({"tune": {"beta": []}}, {}, "`runs.gp.tune.beta` needs at least two values"),
        ({"tune": {"beta": [0.5]}}, {}, "`runs.gp.tune.beta` needs at least two values"),
        ({"tune": {"beta": [0.5, 0.5]}}, {}, "each only once"),
        ({"tune": {"beta": [1, 1.0]}}, {}, "each only once"),
        ({"tune": {"beta": 0.5}}, {}, "`runs.gp.tune.beta`: should be a list"),
        ({"tune": {"bta": [0.1, 0.5]}}, {}, "`runs.gp.tune` cannot choose `bta` (did you mean `beta`?)"),
        ({"tune": {"source.lrr": [0.1, 0.5]}}, {}, "unknown key `train.source.lrr`"),
        ({"tune": {"alpha": [0.1, 0.5]}}, {}, "cannot choose `alpha`"),
        ({"tune": {"labeled": [5, 10]}}, {}, "`runs.gp.tune` cannot choose `labeled`"),
        ({"tune": {"train": ["a", "b"]}}, {}, "`runs.gp.tune` cannot choose `train`"),
        ({"tune": {"beta": [0.5, 3]}}, {}, "`runs.gp-beta-3.beta`: should be between 0.0 and 1.0"),
        ({"tune": {"lr": [0.1, -1]}}, {}, "train.source.lr`: should be greater than 0"),
        ({"tune": {"lr": [0.1, 0.2], "target.lr": [0.1, 0.2]}}, {}, "which is that of both sides"),
        ({"tune": {"beta": [0.1, 0.5]}, "sweep": {"beta": [0.1]}}, {}, "both in `sweep` and in `tune`"),
        ({"tune": {"beta": [0.1, 0.5]}, "beta": 0.3}, {}, "both an option and in `tune`"),
        ({"tune": MANY}, {}, f"40 candidates, at most {MOST}"),
        ({"tune": {"beta": [0.1, 0.5]}}, {"split": SPLIT | {"val": 0.0}}, "`split.val` is 0"),
        ({"tune": {"mu": [0.1, 1]}, "method": "fedprox"}, {"split": SPLIT | {"held_out": "targets"}}, "sources choose"),
        ({"tune": {"lr": [0.1, 1]}, "method": "fedavg", "differential": PRIVATE}, {}, "privacy budget covers one"),
        (
            {"tune": {"components": [5, 10]}, "method": "tca"},
            {"privacy": {"public": True, "release": ["features"]}},
            "tca is fitted once and has no candidates",
        ),
        ({"tune": {"beta": [0.1, 0.5]}, "then": "nonsense"}, {}, "unknown method `nonsense`"),
    ],
)
def test_a_mistake_in_tune_is_one_clear_error(run: dict[str, Any], changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FdamedError, match=re.escape(said)) as error:
        config(run, **changes)
    assert error.value.fix and "\n" not in error.value.what


def test_what_tune_allows_is_accepted() -> None:
    study = config(
        AUX | {"warmup": 2, "tune": {"alpha": [0.1, 1.0], "target.weight_decay": [0, 0.1]}},
        model={"heads": ["sex"]},
    )
    assert {run.auxiliary.alpha for run in study.trained_runs().values() if run.auxiliary} == {0.1, 1.0}
    assert len(config({"tune": {"warmup": [0, 5]}}).trained_runs()) == 2
