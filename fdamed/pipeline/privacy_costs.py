"""The privacy cost of a run for the patients of its sources, from the account that each client keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fdamed.config.runs import Run
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.data.loader import patients
from fdamed.federation.privacy_budget import lines_in
from fdamed.federation.server import Server
from fdamed.federation.storage.checkpoint import Checkpoints
from fdamed.federation.storage.client_state import read_state
from fdamed.pipeline.paths import Places
from fdamed.training.dp_sgd import Mechanism, epsilon


def cost_of(config: Config, spec: Run, client: str, state: Mapping[str, Tensor], account: Path) -> dict[str, Any]:
    """Epsilon, delta and the steps behind it, at a client; {} without noise, or without a step."""
    wanted = config.differential_of(spec)
    spent = lines_in(state, account if wanted.secure else None) if wanted else []
    if not wanted or not spent:
        return {}
    owners = patients(Places.of(config).client(client), ("train", "adapt"))
    delta = Mechanism(wanted.multiplier, wanted.clip, owners, wanted.delta).allowance
    return {"epsilon": epsilon(spent, delta), "delta": delta, "spent": [list(s) for s in spent]}


def costs_of(
    config: Config, spec: Run, server: Server, checkpoints: Checkpoints, account: Callable[[str], Path]
) -> dict[str, Any]:
    """`privacy` of run.json: settings and, for each source, epsilon, delta and the steps behind it; {} without noise.

    `account`: the file of a client on this machine; `checkpoints` have the state of one whose process has ended.
    """
    wanted = config.differential_of(spec)
    if wanted is None:
        return {}
    told = server.transport.inquire("cost", {client: {} for client in server.sources})
    sources: dict[str, Any] = {}
    for client in server.sources:
        if not wanted.secure and client in checkpoints.behind:
            raise _unknown(client, checkpoints)
        cost = told.get(client)
        if cost is None and config.train.transport == "network":
            raise _unknown(client, checkpoints)
        if cost is None:
            last = checkpoints.kept(client)
            state = read_state(Places.of(config).client(client) / last) if last else {}
            cost = cost_of(config, spec, client, state, account(client))
        if cost.get("spent"):
            sources[client] = {key: cost[key] for key in ("epsilon", "delta", "spent")}
    if not sources:
        return {}
    settings = {"unit": "patient", "mode": "secure" if wanted.secure else "reproducible"}
    return settings | {"multiplier": wanted.multiplier, "clip": wanted.clip, "sources": sources}


def _unknown(client: str, checkpoints: Checkpoints) -> FdamedError:
    return FdamedError(
        f"the privacy cost for the patients of {client} is not known: its process ended after answers that are in "
        "the model but in no account",
        str(checkpoints.folder),
        "Delete this folder and start the run again; `train.checkpoint_every: 1` loses least, and `secure: true` "
        "of the differential privacy keeps the account in a file.",
    )
