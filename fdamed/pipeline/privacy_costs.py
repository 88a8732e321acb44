"""What noise at the sources has cost their patients in a run: read from each hospital's own account, in its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fdamed.config.runs import Run
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.data.loader import patients
from fdamed.federation.checkpoint import Checkpoints
from fdamed.federation.client_state import read_state, unpack_state
from fdamed.federation.privacy_budget import FILE, lines_in
from fdamed.federation.server import Server
from fdamed.pipeline.paths import Places
from fdamed.training.dp_sgd import Mechanism, epsilon


def costs_of(
    config: Config, spec: Run, server: Server, memory: Callable[[str, str], Path], checkpoints: Checkpoints
) -> dict[str, Any]:
    """`privacy` of run.json: settings and, for each source, epsilon, delta and the steps behind it; {} without noise.

    `memory`: a hospital and a file's name -> the file among its memories; `checkpoints` have what it was for a hospital
    whose process has ended.
    """
    wanted = config.differential_of(spec)
    if wanted is None:
        return {}
    sources: dict[str, Any] = {}
    for client in server.sources:
        whose = patients(Places.of(config).client(client), ("train", "adapt"))
        delta = Mechanism(wanted.multiplier, wanted.clip, whose, wanted.delta).allowance
        if wanted.secure:
            spent = lines_in({}, memory(client, FILE))
        else:
            spent = lines_in(_remembered(server, client, checkpoints))
        if spent:
            sources[client] = {"epsilon": epsilon(spent, delta), "delta": delta, "spent": [list(s) for s in spent]}
    if not sources:
        return {}
    return {"unit": "patient", "mode": "secure" if wanted.secure else "reproducible"} | {
        "multiplier": wanted.multiplier,
        "clip": wanted.clip,
        "sources": sources,
    }


def _remembered(server: Server, client: str, checkpoints: Checkpoints) -> Mapping[str, Tensor]:
    """What a hospital remembers of all that it has answered, also when its process has ended since."""
    if client in checkpoints.behind:
        raise FdamedError(
            f"what noise has cost the patients of {client} is not known: its process ended after answers that are in "
            "the model and in no account",
            str(checkpoints.folder),
            "Delete this folder and start the run again; `train.checkpoint_every: 1` leaves the least to be lost, and "
            "`secure: true` of the differential privacy keeps the account in a file.",
        )
    state = server.transport.state(client)
    if state is not None:
        return unpack_state(state, f"client {client}")
    last = checkpoints.kept(client)
    return read_state(last) if last else {}
