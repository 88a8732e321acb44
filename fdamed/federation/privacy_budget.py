"""The privacy budget that a client's training has spent: recorded at the client, reported as epsilon after each round.

Reproducible noise: the account is part of the client's state and of the checkpoint, so a round that is repeated after a
kill gives the same bits and costs nothing more. Secure noise: a repeated round gives other bits, so the account is a
file that is written, atomically and durably, before the answer is sent, and never reset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fdamed.core.errors import FdamedError
from fdamed.core.files import write_text
from fdamed.federation.absences import DroppedOut
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Count, Scalar, message
from fdamed.federation.server import Server
from fdamed.training.dp_sgd import Mechanism, Spent, epsilon

SPENT = "privacy.spent"
WITHHELD = 0.0
"""Sent instead of the training loss, which has no noise on it."""
FILE = "account.jsonl"


@message
class Ask:
    """The number of the round."""

    round: Count


@message
class Cost:
    """Epsilon of all steps so far, at this delta, for each of the client's patients."""

    epsilon: Scalar
    delta: Scalar


def spend(client: Client, noise: Mechanism, steps: int, batch: int) -> None:
    """Record steps in the account, before their result can be sent."""
    steps_of = {(multiplier, rate): n for multiplier, rate, n in lines_in(client.memory, client.account)}
    key = (noise.multiplier, noise.probability(batch))
    steps_of[key] = steps_of.get(key, 0) + steps
    lines = [(*key, n) for key, n in steps_of.items()]
    if client.account is None:
        client.memory[SPENT] = torch.tensor(lines, dtype=torch.float64)
    else:
        write_text(client.account, "".join(f"{json.dumps(line)}\n" for line in lines))


def lines_in(memory: Mapping[str, Tensor], account: Path | None = None) -> list[Spent]:
    """The account of a client, from its file or its state: one line for the steps under the same conditions."""
    if account is None:
        table = memory.get(SPENT, torch.empty(0, 3)).tolist()
        return [(multiplier, rate, int(steps)) for multiplier, rate, steps in table]
    lines: list[Spent] = []
    for number, line in enumerate(account.read_text().splitlines() if account.exists() else (), 1):
        try:
            multiplier, rate, steps = map(float, json.loads(line))
            lines.append((multiplier, rate, int(steps)))
        except (ValueError, TypeError, OverflowError):
            fix = "Restore the file from a backup: without it the budget spent so far is unknown."
            raise FdamedError(f"line {number} of the privacy account is damaged", str(account), fix) from None
    return lines


@step("report_privacy_cost", noised=True, public=True)
def report_cost(client: Client, ask: Ask) -> Cost:
    """The budget spent; both numbers follow from the settings and the number of patients."""
    if client.noise is None:
        return Cost(epsilon=0.0, delta=0.0)
    delta = client.noise.allowance
    return Cost(epsilon=epsilon(lines_in(client.memory, client.account), delta), delta=delta)


def log_costs(server: Server) -> None:
    """After a round: log the epsilon of each source, and no training loss if all losses were withheld."""
    if server.notes.get("train/loss") == WITHHELD:
        server.log({"train/loss": None})
    for name in server.participants:  # one by one: a client that does not report its cost does not break the quorum
        try:
            cost: Cost = server.ask(name, report_cost, Ask(round=server.round))
        except DroppedOut:
            continue
        server.log({f"privacy/epsilon/{name}": cost.epsilon})
