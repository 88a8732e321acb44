"""The privacy cost of a run for the patients of its sources, read from the account in each client's own folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fdamed.config.runs import Run
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.data.loader import patients
from fdamed.federation.privacy_budget import FILE, lines_in
from fdamed.federation.server import Server
from fdamed.federation.storage.checkpoint import Checkpoints
from fdamed.federation.storage.client_state import read_state, unpack_state
from fdamed.pipeline.paths import Places
from fdamed.training.dp_sgd import Mechanism, epsilon


def costs_of(
    config: Config, spec: Run, server: Server, memory: Callable[[str, str], Path], checkpoints: Checkpoints
) -> dict[str, Any]:
    """`privacy` of run.json: settings and, for each source, epsilon, delta and the steps behind it; {} without noise.

    `memory`: client and file name -> the file in the client's folder; `checkpoints` have the state of a client whose
    process has ended.
    """
    wanted = config.differential_of(spec)
    if wanted is None:
        return {}
    sources: dict[str, Any] = {}
    for client in server.sources:
        owners = patients(Places.of(config).client(client), ("train", "adapt"))
        delta = Mechanism(wanted.multiplier, wanted.clip, owners, wanted.delta).allowance
        state = {} if wanted.secure else _state(server, client, checkpoints)
        spent = lines_in(state, memory(client, FILE)) if wanted.secure else lines_in(state)
        if spent:
            sources[client] = {"epsilon": epsilon(spent, delta), "delta": delta, "spent": [list(s) for s in spent]}
    if not sources:
        return {}
    settings = {"unit": "patient", "mode": "secure" if wanted.secure else "reproducible"}
    return settings | {"multiplier": wanted.multiplier, "clip": wanted.clip, "sources": sources}


def _state(server: Server, client: str, checkpoints: Checkpoints) -> Mapping[str, Tensor]:
    """The state of a client after its last answer, even if its process has ended since."""
    if client in checkpoints.behind:
        raise FdamedError(
            f"the privacy cost for the patients of {client} is not known: its process ended after answers that are in "
            "the model but in no account",
            str(checkpoints.folder),
            "Delete this folder and start the run again; `train.checkpoint_every: 1` loses least, and `secure: true` "
            "of the differential privacy keeps the account in a file.",
        )
    state = server.transport.state(client)
    if state is not None:
        return unpack_state(state, f"client {client}")
    last = checkpoints.kept(client)
    return read_state(last) if last else {}
