"""What a client answers beside the steps of a method, and what the server asks of the target: scores of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fdamed.config.runs import Run
from fdamed.config.study import Config
from fdamed.federation.method import Method
from fdamed.federation.questions import Home, Memory, scores_in, theta_bytes
from fdamed.federation.runner import Judge
from fdamed.federation.server import Server
from fdamed.models.backbone import build
from fdamed.models.flat import FlatModel, Layout, without_heads
from fdamed.pipeline.clients import Own, judge
from fdamed.pipeline.devices import device
from fdamed.pipeline.privacy_costs import cost_of
from fdamed.pipeline.selection import StudyRun


def scores_at(server: Server, theta: Tensor) -> dict[str, float | None]:
    """Scores of a model at the target; none if it does not answer."""
    found = server.transport.inquire("evaluate", {server.target: {}}, theta_bytes(theta))
    return scores_in(found[server.target]) if server.target in found else {}


def home_of(
    one: StudyRun,
    spec: Run,
    method: Method[Any],
    client: str,
    model: FlatModel,
    file: Callable[[str], Path],
    account: Path,
) -> Home:
    """What a client answers beside the steps of a phase; `file`: name in a question -> its own file."""
    config, made = one.config, list[Judge]()

    def scores(theta: Tensor, memory: Memory) -> Mapping[str, float | None]:
        if not made:  # the parts that are scored are loaded once
            own = predicting(config, method, model.layout, memory) if method.keeps or method.parts else None
            parts = ("val",) if one.candidate_of else ("val", "test")
            made.append(judge(config, spec, one.target, one.seed, model, own, parts))
        return made[0](theta)

    def cost(memory: Memory) -> dict[str, Any]:
        return cost_of(config, spec, client, memory.read(), account)

    return Home(model.layout, file, scores if client == one.target else None, cost)


def predicting(config: Config, method: Method[Any], layout: Layout, memory: Memory) -> Own:
    """The model that predicts, where it is not the bare network: the target's own, or the shared one with its parts."""

    def whole(final: Tensor) -> FlatModel | None:
        state = memory.read() if method.keeps else method.named(final, layout)
        kept = {k: v for k, v in state.items() if not method.keeps or k in method.keeps}
        return whole_model(config, method, without_heads(kept, layout))

    return whole


def whole_model(config: Config, method: Method[Any], tensors: Mapping[str, Tensor]) -> FlatModel | None:
    """The model of these tensors, which are more than the network's; None if a part of it is missing."""
    module = method.predictor(build(config.model), tensors)
    return FlatModel(module, device(config)) if module else None
