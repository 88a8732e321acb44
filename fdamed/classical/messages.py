"""The messages and steps with which features are pooled: one row per patient, which clients rarely release.

The server sends the backbone (weights), a source answers with features and labels, the target with features alone.
Then the target sends the features of the images it asks about, and receives their probabilities.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from fdamed.core.errors import FdamedError
from fdamed.federation.client import Client, step
from fdamed.federation.messages import ROWS, Check, Count, Features, Weights, message
from fdamed.models.adversarial import shape_of
from fdamed.models.flat import digest_weights

TEST_FEATURES, PREDICTIONS, BACKBONE = "questions", "answers", "backbone"
"""In a client's memory: features it asks about (b, d), their probabilities (b, C), the digest of its backbone."""


WIDE = Check(shape=lambda _, layout: (ROWS, shape_of(layout).d))
"""One row of the network's features for each patient."""


@message
class Backbone:
    """The network that every client has made its features with."""

    x: Weights


@message
class Rows:
    """Features (n, d) and labels (n,) of a source's patients; each label is a patient's, too."""

    z: Annotated[Features, WIDE]
    y: Annotated[Features, Check(shape=lambda _, __: (ROWS,), dtype=torch.int64)]


@message
class Unlabeled:
    """Features (n, d) of the target's patients."""

    z: Annotated[Features, WIDE]


@message
class Probabilities:
    """(b, C): one row for each patient that the target asked about."""

    p: Features


@message
class Received:
    n: Count


@step("classical.send_labeled_features")
def send_rows(client: Client, ask: Backbone) -> Rows:
    """A source's features with their labels."""
    _same_backbone(client, ask.x)
    labeled = client.data
    return Rows(z=torch.from_numpy(labeled.images), y=torch.from_numpy(labeled.y))  # type: ignore[union-attr]


@step("classical.send_unlabeled_features")
def send_unlabeled(client: Client, ask: Backbone) -> Unlabeled:
    """The target's features, which have no labels here."""
    _same_backbone(client, ask.x)
    return Unlabeled(z=torch.from_numpy(client.data.images))


@step("classical.send_test_features")
def send_test_features(client: Client, ask: Received) -> Unlabeled:
    """The features of the images that the target asks about."""
    return Unlabeled(z=client.memory[TEST_FEATURES])


@step("classical.receive_predictions")
def receive_predictions(client: Client, ask: Probabilities) -> Received:
    """Keep the probabilities; they stay in the target's folder."""
    client.memory[PREDICTIONS] = ask.p
    return Received(n=len(ask.p))


def _same_backbone(client: Client, theta: Tensor) -> None:
    if not torch.equal(digest_weights(theta), client.memory[BACKBONE]):
        fix = "Run `fdamed features` again for this hospital."
        raise FdamedError("its features were made with other weights", f"hospital {client.name}", fix)


STEPS = (send_rows, send_unlabeled, send_test_features, receive_predictions)
