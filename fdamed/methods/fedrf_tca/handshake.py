"""Before FedRF-TCA's first exchange: who has begun, and whether all drew the same Omega from the study's seed."""

from __future__ import annotations

import torch
from torch import Tensor

from fdamed.core.errors import FdamedError
from fdamed.federation.server import DroppedOut, Network
from fdamed.methods.fedrf_tca.client import Begin, Terms, agree, begin


def agreed(net: Network, terms: Terms) -> None:
    """Ask everybody who is there whether it will take part; who is away is asked when it begins."""
    omega = 0
    for party, reply in net.ask_all((*net.participants, net.target), agree, terms).items():
        omega = _same(omega, reply.omega, party)


def met(net: Network, begun: Tensor, omega: int, ask: Begin) -> tuple[Tensor, int]:
    """Start those who have not begun: who has afterwards, target first (K + 1,), and the checksum of Omega."""
    parties = (net.target, *net.sources)
    begun = begun.clone() if begun.numel() else torch.zeros(len(parties))
    for i, party in enumerate(parties):
        if begun[i]:
            continue
        try:
            reply = net.ask(party, begin, ask)
        except DroppedOut:
            continue
        omega = _same(omega, reply.omega, party)
        begun[i] = 1.0
    return begun, omega


def has_begun(net: Network, begun: Tensor, party: str) -> bool:
    return bool(begun[(net.target, *net.sources).index(party)])


def _same(omega: int, theirs: int, party: str) -> int:
    """The checksum that all have (0: none is known yet), or an error that names who has another."""
    if omega and theirs != omega:
        raise FdamedError(
            f"{party} drew another Omega from its seed than the others: their means cannot be compared",
            f"hospital {party}",
            "Give all hospitals the same seed and the same fdamed, and start the run again.",
        )
    return theirs
