"""Before FedRF-TCA's first exchange: who has begun, and whether all drew the same Omega from the study's seed."""

from __future__ import annotations

import torch
from torch import Tensor

from fdamed.core.errors import FdamedError
from fdamed.federation.absences import DroppedOut
from fdamed.federation.server import Server
from fdamed.methods.fedrf_tca.client import Begin, begin


def met(server: Server, begun: Tensor, omega: int, ask: Begin) -> tuple[Tensor, int]:
    """Start those who have not begun: who has afterwards, target first (K + 1,), and the checksum of Omega."""
    clients = (server.target, *server.sources)
    begun = begun.clone() if begun.numel() else torch.zeros(len(clients))
    for i, client in enumerate(clients):
        if begun[i]:
            continue
        try:
            reply = server.ask(client, begin, ask)
        except DroppedOut:
            continue
        omega = _same(omega, reply.omega, client)
        begun[i] = 1.0
    return begun, omega


def has_begun(server: Server, begun: Tensor, client: str) -> bool:
    return bool(begun[(server.target, *server.sources).index(client)])


def _same(omega: int, theirs: int, client: str) -> int:
    """The checksum that all have (0: none is known yet), or an error that names who has another."""
    if omega and theirs != omega:
        raise FdamedError(
            f"{client} drew another Omega from its seed than the others: their means cannot be compared",
            f"hospital {client}",
            "Give all hospitals the same seed and the same fdamed, and start the run again.",
        )
    return theirs
