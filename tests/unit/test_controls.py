"""Controls of the runs of a study."""

from __future__ import annotations

from typing import Any

from fdamed.config.runs import Run
from fdamed.evaluation.comparison.controls import controls, is_control


def runs(**given: dict[str, Any]) -> dict[str, Run]:
    return {name: Run.model_validate({"method": name} | options) for name, options in given.items()}


HALF = {"method": "target_only", "server_step": 0.5}


def test_target_only_half_a_step_and_adabn_are_controls_and_other_baselines_are_not() -> None:
    given = runs(target_only={}, half_step=HALF, adabn={}, fedavg={}, finetune={}, oracle={}, gp={}, finetune_head={})
    assert {name for name, run in given.items() if is_control(run)} == {"target_only", "half_step", "adabn"}


def test_the_control_of_a_projection_takes_the_same_share_of_the_targets_step() -> None:
    known = controls(runs(gp={"beta": 0.5}, fedgp={"beta": 0.1}, finetune={}, half_step=HALF, target_only={}))
    assert known == {"gp": "half_step", "fedgp": "target_only", "finetune": "target_only"}
    assert controls(runs(gp={}, half_step=HALF, target_only={}))["gp"] == "half_step", "beta is 0.5 by default"


def test_methods_that_see_unlabeled_images_have_adabn_as_control_and_those_that_see_none_have_no_control() -> None:
    known = controls(runs(kd3a={}, fedavg={}, scaffold={}, oracle={}, adabn={}, target_only={}))
    assert known == {"kd3a": "adabn"}


def test_a_control_has_as_many_labels_as_its_run() -> None:
    assert controls(runs(gp={"labeled": 20}, target_only={})) == {}
    few = runs(gp={"labeled": 20}, target_only={}, few={"method": "target_only", "labeled": 20})
    assert controls(few) == {"gp": "few"}


def test_a_second_phase_on_labels_makes_target_only_the_control() -> None:
    assert controls(runs(fedavg={"then": {"method": "finetune_head"}}, target_only={})) == {"fedavg": "target_only"}
