"""Advice by cross-fitting: one round of each method, worked out by hand on parabolas, and the folds of the target."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fdamed.methods  # noqa: F401
from fdamed.config.privacy import FOLDS, Minimum
from fdamed.config.study import Recipe
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.data.loader import Labeled
from fdamed.data.splitting.folds import folds_of
from fdamed.federation.method import REGISTRY
from fdamed.federation.transport.base import InProcess
from fdamed.models.flat import FlatModel
from fdamed.theory.advice import recommend
from fdamed.theory.trials import CrossFit, TrialServer, drops, is_candidate, without_fold
from tests.support.federation import Altered
from tests.support.quadratics import CURVES, Parabola, hospital

ONE_STEP = Recipe(lr=0.1, batch=4, optimizer="sgd")
"""At the sources (two images) and at the target (four of five) one step is one epoch."""
METHODS: dict[str, Any] = {
    "fedavg": REGISTRY["fedavg"](),
    "finetune": REGISTRY["finetune"](),
    "target_only": REGISTRY["target_only"](),
    "half_step": REGISTRY["target_only"](server_step=0.5),
    "gp": REGISTRY["gp"](align="none"),
    "fedgp": REGISTRY["fedgp"](),
}


def labeled(*b: float) -> Labeled:
    """Images whose loss is 1/2 (theta - b)^2 + 1."""
    return Labeled(np.array([(1.0, x) for x in b], np.float32), np.zeros(len(b), np.int64), {})


def server(known: dict[str, Any], minimum: Minimum | None = None) -> TrialServer:
    """Sources with 1/2 theta^2 and 5 (theta - 1)^2; the target holds out b = 3 and trains on 1, 2, 4 and 5."""
    model = FlatModel(Parabola())
    clients = {name: hospital(name, model, ONE_STEP) for name in (*CURVES, "target")}
    data = CrossFit(**vars(labeled(1, 2, 4, 5)), held_out=labeled(3))
    clients["target"] = replace(clients["target"], data=data)
    if minimum:
        clients["target"] = replace(clients["target"], minimum=minimum)
    return TrialServer(InProcess(clients), "target", "test", known=known, epochs={})


def test_the_drop_of_the_held_out_loss_is_that_of_the_methods_own_round() -> None:
    """From theta = 0. Target: 0.1 * 3 = 0.3. Sources: 0 and 0.1 * 10 = 1, on average 0.5; from there the target
    takes 0.1 * (3 - 0.5). GP: 0.3 / 2 + 1/2 * 1/2 * 1 (a source without a gradient adds nothing); FedGP:
    0.3 / 2 + 1/2 * 1/2 * 0.3."""
    ends = {"fedavg": 0.5, "finetune": 0.75, "target_only": 0.3, "half_step": 0.15, "gp": 0.4, "fedgp": 0.225}
    found = drops(server({}), METHODS, torch.zeros(1), 3)
    expected = {name: (3.0**2 - (3.0 - end) ** 2) / 2 for name, end in ends.items()}
    assert found == pytest.approx(expected, abs=1e-5)
    assert expected["finetune"] == 1.96875


def test_no_client_is_asked_the_same_question_twice_and_sources_not_again_in_another_fold() -> None:
    known: dict[str, Any] = {}
    asked: Counter[tuple[str, str]] = Counter()
    images = []
    for _ in range(2):
        fold = server(known)
        deliver = fold.transport.deliver

        def count(client: str, step: Any, nth: int, msg: Any, deliver: Any = deliver) -> Any:
            asked[client, step.name] += 1
            return deliver(client, step, nth, msg)

        fold.transport = Altered(fold.transport, count)
        drops(fold, METHODS, torch.zeros(1), 3)
        images.append(fold.images)
    assert asked == {
        ("one", "train_locally"): 1,
        ("two", "train_locally"): 1,
        ("one", "compute_update"): 1,
        ("two", "compute_update"): 1,
        ("target", "train_locally"): 2,
        ("target", "compute_update"): 2,
        ("target", "survey.held_out"): 2 * 7,
    }
    target = 4 + 4 + 7  # fine-tuning, an update, one image held out
    assert images == [4 * 2 + target, target]


def test_what_leaves_the_target_in_a_trial_is_what_a_run_sends_and_one_number() -> None:
    fold = server({})
    drops(fold, METHODS, torch.zeros(1), 3)
    sent = {(line["step"], line["kind"]) for line in fold.ledger.lines() if line["from"] == "target"}
    assert {kind for step, kind in sent if step == "survey.held_out"} == {"scalar", "count"}
    assert {kind for _, kind in sent} == {"weights", "update", "scalar", "count"}


def test_a_fold_smaller_than_the_privacy_policys_minimum_is_refused() -> None:
    with pytest.raises(FdamedError, match="fold of the labeled images is too small"):
        drops(server({}, Minimum(images=2, steps=1)), METHODS, torch.zeros(1), 3)


def test_folds_hold_out_every_image_once_keep_patients_whole_and_share_out_the_classes() -> None:
    y = np.tile([0, 0, 1, 1], 10)
    owner = np.repeat(np.arange(20), 2)  # two images of one class each
    data = Labeled(np.arange(40, dtype=np.float32)[:, None], y, {"sex": y})
    folds = [without_fold(data, owner, fold, stream(0, "folds")) for fold in range(FOLDS)]
    held = [fold.held_out for fold in folds if fold.held_out is not None]
    assert sorted(float(x) for part in held for x in part.images[:, 0]) == list(range(40))
    for fold, out in zip(folds, held, strict=True):
        assert (len(fold), len(out), int(out.y.sum())) == (32, 8, 4)
        assert not {int(x) // 2 for x in fold.images[:, 0]} & {int(x) // 2 for x in out.images[:, 0]}
        assert (out.auxiliary["sex"] == out.y).all()
    assert (folds_of(y, owner, 5, stream(0, "folds")) == folds_of(y, owner, 5, stream(0, "folds"))).all()


def test_images_of_four_patients_cannot_be_split_in_five_folds() -> None:
    with pytest.raises(FdamedError, match="fewer than 5 patients"):
        without_fold(labeled(1, 2, 3, 4, 5), np.array([0, 0, 1, 2, 3]), 0, stream(0, "folds"))


def test_candidates_are_methods_that_start_from_one_model_and_make_one() -> None:
    found = {name for name, kind in REGISTRY.items() if is_candidate(kind)}
    assert {"fedavg", "finetune", "gp", "fedgp", "fedda", "target_only"} <= found
    assert not found & {"oracle", "fedbn", "finetune_offline", "fada", "kd3a", "scaffold", "fedsr"}


# --- the recommendation ----------------------------------------------------------------------------------------------


def test_a_run_that_leads_in_every_fold_is_recommended() -> None:
    """The lead of a over b is 1, 2, 3 (mean 2, standard error 1 / sqrt 3) and t of 2 degrees at 90 % is 2.920."""
    found = recommend({"b": [1.0, 1.0, 1.0], "a": [2.0, 3.0, 4.0], "c": [0.0, 0.0, 5.0]})
    first, second, third = found["ranking"]
    assert [first["run"], second["run"], third["run"]] == ["a", "c", "b"]
    assert third["behind"] == pytest.approx(
        {"value": 2.0, "low": 2 - 2.92 / 3**0.5, "high": 2 + 2.92 / 3**0.5}, abs=1e-3
    )
    assert found["winner"] is None, "c is behind by 2, 3, -1: its interval contains 0"
    assert found["not_separated"] == ["a", "c"]
    assert recommend({"b": [1.0, 1.0, 1.0], "a": [2.0, 3.0, 4.0]})["winner"] == "a"


def test_two_runs_that_take_turns_have_no_clear_winner() -> None:
    found = recommend({"a": [1.0, 0.0, 1.0, 0.0], "b": [0.0, 1.0, 0.0, 1.1]})
    assert found["winner"] is None and found["ranking"][0]["run"] == "b"
    assert sum(row["best_share"] for row in found["ranking"]) == pytest.approx(1.0)
    assert 0.3 < found["ranking"][0]["best_share"] < 0.9


def test_equal_runs_have_no_clear_winner() -> None:
    assert recommend({"gp": [0.5, 0.6], "half_step": [0.5, 0.6]})["winner"] is None


def test_a_lead_over_a_near_copy_alone_is_no_clear_win() -> None:
    """half_step is always a hair ahead of gp, and nobody knows whether it is ahead of finetune."""
    found = recommend({"half_step": [0.2, 0.1, 0.3], "gp": [0.19, 0.09, 0.29], "finetune": [0.9, -0.9, 0.3]})
    assert [row["run"] for row in found["ranking"]] == ["half_step", "gp", "finetune"]
    assert found["winner"] is None and found["not_separated"] == ["half_step", "finetune"]
