"""Step names are part of every random stream: a name that changes, changes results. So they are pinned here."""

from __future__ import annotations

import fdamed.classical.messages
import fdamed.federation.privacy_budget
import fdamed.methods
import fdamed.theory.survey_client  # noqa: F401
from fdamed.federation.client import STEPS as DEFINED

STEPS = {
    "auto_weighting.compare_gradients": "auto_weighting.compare_gradients",
    "auto_weighting.compute_update": "auto_weighting.compute_update",
    "classical.receive_predictions": "classical.receive_predictions",
    "classical.send_labeled_features": "classical.send_labeled_features",
    "classical.send_test_features": "classical.send_test_features",
    "classical.send_unlabeled_features": "classical.send_unlabeled_features",
    "compute_update": "compute_update",
    "continue_training": "continue_training",
    "fada.adapt": "fada.adapt",
    "fada.feature_spread": "fada.feature_spread",
    "fada.recalibrate": "fada.recalibrate",
    "fdan.align": "fdan.align",
    "fdan.embed": "fdan.embed",
    "fdann.train": "fdann.train",
    "feature_exchange.end": "feature_exchange.end",
    "feature_exchange.invariant.send_features": "feature_exchange.invariant.send_features",
    "feature_exchange.receive_gradients": "feature_exchange.receive_gradients",
    "feature_exchange.send_features": "feature_exchange.send_features",
    "feature_exchange.start": "feature_exchange.start",
    "fedgtst.train": "train_locally",
    "fediir.head_gradient": "fediir.head_gradient",
    "fediir.train": "train_locally",
    "fedprox.train": "train_locally",
    "fedrf_tca.begin": "fedrf_tca.begin",
    "fedrf_tca.receive_average": "fedrf_tca.receive_average",
    "fedrf_tca.send_mean": "fedrf_tca.send_mean",
    "fedrf_tca.train": "fedrf_tca.train",
    "fedsr.train": "train_locally",
    "finetune_head": "finetune_head",
    "finetune_whole": "finetune_whole",
    "kd3a.distill": "kd3a.distill",
    "kd3a.receive_model": "kd3a.receive_model",
    "kd3a.report_state": "kd3a.report_state",
    "kd3a.train_source": "kd3a.train_source",
    "report_privacy_cost": "report_privacy_cost",
    "scaffold.train": "train_locally",
    "survey.geometry": "survey.geometry",
    "survey.gradient": "survey.gradient",
    "survey.held_out": "survey.held_out",
    "train_locally": "train_locally",
}
"""Name of a step -> name in its random streams: its own, or that of the step whose numbers it draws."""


def test_the_names_of_steps_and_of_their_random_streams_never_change() -> None:
    found = {step.name: step.draws for step in DEFINED.values() if step.run.__module__.startswith("fdamed.")}
    assert {name: found.get(name) for name in STEPS} == STEPS
