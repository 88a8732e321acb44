"""The loss of the auxiliary heads: kept at a source after its training, and asked for once a round is done.

It is sent apart from the task's loss, and only in runs with such heads: no method's messages know of it.
"""

from __future__ import annotations

import torch

from fdamed.federation.absences import DroppedOut
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Count, Images, Scalar, message
from fdamed.federation.server import Server

LOSS = "train/auxiliary_loss"
KEPT = "heads.loss"
"""In a client's state, from its training to the question for it."""


@message
class Ask:
    """The number of the round."""

    round: Count


@message
class AuxiliaryLoss:
    """The mean over the steps of the heads' losses, added up without alpha; n = 0: none, or no label for any head."""

    loss: Scalar
    n: Images


def remember(client: Client, loss: float) -> None:
    """Keep the loss and its round until it is asked for."""
    client.memory[KEPT] = torch.tensor([loss, client.round], dtype=torch.float64)


@step("report_auxiliary_loss")
def report(client: Client, ask: Ask) -> AuxiliaryLoss:
    """The loss of the training in this round, once; one whose report was lost is not reported later."""
    kept = client.memory.pop(KEPT, None)
    known = client.auxiliary and any((client.data.auxiliary[k] >= 0).any() for k in client.auxiliary.heads)  # type: ignore[union-attr]
    if kept is None or int(kept[1]) != ask.round or not known:
        return AuxiliaryLoss(loss=0.0, n=0)
    return AuxiliaryLoss(loss=float(kept[0]), n=len(client.data))


def log_auxiliary_loss(server: Server) -> None:
    """After a round: log the heads' mean loss over the sources that trained, weighted by their images."""
    found = []
    for name in sorted(server.heard & set(server.sources)):  # one by one: a lost report does not break the quorum
        try:
            found.append(server.ask(name, report, Ask(round=server.round)))
        except DroppedOut:
            continue
    if images := sum(r.n for r in found):
        server.log({LOSS: sum(r.n * r.loss for r in found) / images})
