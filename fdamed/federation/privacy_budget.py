"""The privacy budget that a client's training has spent: kept inside, reported as one number a round.

Reproducible mode: the account is part of the client's state, and so of the checkpoint: a round that is trained again
after a kill gives the same bits and costs nothing more. Secure mode: it would give other bits, so the account is a file
that is written before the answer leaves and never goes back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fdamed.core.errors import FdamedError
from fdamed.federation.absences import DroppedOut
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Count, Scalar, message
from fdamed.federation.server import Server
from fdamed.training.dp_sgd import Spent, epsilon

SPENT = "privacy.spent"
WITHHELD = 0.0
"""Sent instead of the training loss under DP: the loss itself has no noise on it."""
FILE = "account.jsonl"


@message
class Ask:
    """Nothing but the number of the round."""

    round: Count


@message
class Cost:
    """Epsilon of all steps until now, at this delta, for each of the client's patients."""

    epsilon: Scalar
    delta: Scalar


def spend(client: Client, steps: int, batch: int) -> None:
    """Enter steps into the account, before their outcome can leave."""
    if client.noise is None:
        return
    line = (client.noise.multiplier, client.noise.chance(batch), steps)
    if client.account is not None:
        append(client.account, line)
    else:
        client.memory[SPENT] = rows([*lines_in(client.memory), line])


def append(path: Path, line: Spent) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        entered, size = _entered(path), path.stat().st_size
        file.truncate(min(size, len(entered)))
        file.write(entered[size:] + json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _entered(path: Path) -> bytes:
    """The whole lines of an account. A line that a kill or a full disk cut short belongs to an answer never sent."""
    whole, newline, last = path.read_bytes().rpartition(b"\n")
    return whole + newline + (last + b"\n" if last and _spent(last) else b"")


def _spent(line: bytes) -> Spent | None:
    """The entry in a line; None: it cannot be read."""
    try:
        multiplier, chance, steps = map(float, json.loads(line))
        return multiplier, chance, int(steps)
    except (ValueError, TypeError, OverflowError):
        return None


def read_account(path: Path) -> list[Spent]:
    """All lines of an account. A damaged one is an error: it is not taken for an empty one."""
    found = []
    for number, line in enumerate(_entered(path).splitlines() if path.exists() else (), 1):
        spent = _spent(line)
        if spent is None:
            fix = "Restore the file from a backup: without it the budget spent so far is unknown."
            raise FdamedError(f"line {number} of the account of privacy is damaged", str(path), fix)
        found.append(spent)
    return found


def rows(lines: list[Spent]) -> Tensor:
    """(k, 3) float64, with steps under the same conditions on one line."""
    merged: dict[tuple[float, float], int] = {}
    for multiplier, chance, steps in lines:
        merged[multiplier, chance] = merged.get((multiplier, chance), 0) + int(steps)
    return torch.tensor([(*key, steps) for key, steps in merged.items()], dtype=torch.float64).reshape(-1, 3)


def lines_in(memory: Mapping[str, Tensor], account: Path | None = None) -> list[Spent]:
    """The account of a client: its file, or its state."""
    if account is not None:
        table = rows(read_account(account))
    else:
        table = memory.get(SPENT, torch.empty(0, 3))
    return [(m, q, int(steps)) for m, q, steps in table.tolist()]


@step("report_privacy_cost", noised=True)
def report_cost(client: Client, ask: Ask) -> Cost:
    """The budget spent; both numbers follow from the settings and the number of patients."""
    if client.noise is None:
        return Cost(epsilon=0.0, delta=0.0)
    delta = client.noise.allowance
    return Cost(epsilon=epsilon(lines_in(client.memory, client.account), delta), delta=delta)


def log_costs(server: Server) -> None:
    """After a round: log the epsilon of each source, and no loss where all losses were withheld."""
    if server.notes.get("train/loss") == WITHHELD:
        server.log({"train/loss": None})
    for name in server.participants:  # one by one: a client that does not report its cost does not break the quorum
        try:
            cost: Cost = server.ask(name, report_cost, Ask(round=server.round))
        except DroppedOut:
            continue
        server.log({f"privacy/epsilon/{name}": cost.epsilon})
