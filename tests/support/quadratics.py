"""Clients with a quadratic loss: the real local training, with results that can be worked out on paper."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fdamed.config.privacy import NO_MINIMUM
from fdamed.config.study import Recipe
from fdamed.data.loader import Labeled
from fdamed.federation.client import Client, Role
from fdamed.federation.server import Server
from fdamed.federation.transport.base import InProcess
from fdamed.models.flat import FlatModel
from tests.support import federation as hospitals

CURVES = {"one": (1.0, 0.0), "two": (10.0, 1.0)}
"""Hospital -> (a, b) of 1/2 a (theta - b)^2; together they are lowest at 10/11."""
TEN_STEPS = Recipe(lr=0.02, batch=2, epochs=10, optimizer="sgd")


class Parabola(nn.Module):
    """Rows (a, b) -> logits whose cross-entropy with class 0 is 1/2 a (theta - b)^2 + 1."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        height = 0.5 * x[:, 0] * (self.theta - x[:, 1]) ** 2 + 1.0
        return torch.stack([torch.zeros_like(height), torch.log(torch.expm1(height))], 1)


def hospital(name: str, model: FlatModel, recipe: Recipe) -> Client:
    row = np.array([CURVES.get(name, (1.0, 0.0))] * 2, np.float32)
    data = Labeled(row, np.zeros(2, np.int64), {})
    role: Role = "target" if name == "target" else "source"
    return Client(name, data, model, recipe, 0, hospitals.RELEASE, role=role, minimum=NO_MINIMUM)


def in_process(recipe: Recipe = TEN_STEPS) -> Server:
    model = FlatModel(Parabola())
    return Server(InProcess({n: hospital(n, model, recipe) for n in (*CURVES, "target")}), "target", "test")
