"""What a hospital's training has cost its patients: kept inside, told as one number a round.

Reproducible mode: the account is part of the hospital's memory, and so of the checkpoint: a round that is trained again
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
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Count, Scalar, message
from fdamed.federation.server import DroppedOut, Server
from fdamed.training.dp_sgd import Spent, epsilon

SPENT = "privacy.spent"
WITHHELD = 0.0
"""What a hospital tells of its training loss under noise: the loss itself has none on it."""
FILE = "account.jsonl"


@message
class Ask:
    """Nothing but the number of the round."""

    round: Count


@message
class Cost:
    """Epsilon of all steps until now, at this delta, for each of the hospital's patients."""

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
    """The whole lines of an account. What a kill or a full disk cut off of the last one has not left the hospital."""
    whole, newline, last = path.read_bytes().rpartition(b"\n")
    return whole + newline + (last + b"\n" if last and _spent(last) else b"")


def _spent(line: bytes) -> Spent | None:
    """What a line says; None: nothing that can be read."""
    try:
        multiplier, chance, steps = map(float, json.loads(line))
        return multiplier, chance, int(steps)
    except (ValueError, TypeError, OverflowError):
        return None


def read_account(path: Path) -> list[Spent]:
    """The lines of an account from its first day. A damaged one is an error: it is not taken for an empty one."""
    found = []
    for number, line in enumerate(_entered(path).splitlines() if path.exists() else (), 1):
        spent = _spent(line)
        if spent is None:
            fix = "Put the file back from a copy: without it nobody knows what the patients have paid already."
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
    """The account of a hospital: its file, or what it remembers."""
    if account is not None:
        table = rows(read_account(account))
    else:
        table = memory.get(SPENT, torch.empty(0, 3))
    return [(m, q, int(steps)) for m, q, steps in table.tolist()]


@step("report_privacy_cost", noised=True)
def tell_cost(client: Client, ask: Ask) -> Cost:
    """What the account stands at; both numbers follow from the settings and the number of patients."""
    if client.noise is None:
        return Cost(epsilon=0.0, delta=0.0)
    delta = client.noise.allowance
    return Cost(epsilon=epsilon(lines_in(client.memory, client.account), delta), delta=delta)


def note_costs(server: Server) -> None:
    """After a round: epsilon of each source into the notes, and no loss where only withheld ones went into it."""
    if server.notes.get("train/loss") == WITHHELD:
        server.notes["train/loss"] = None
    for (
        name
    ) in server.participants:  # one by one: who does not tell is missing here, and takes no quorum from the round
        try:
            cost: Cost = server.ask(name, tell_cost, Ask(round=server.round))
        except DroppedOut:
            continue
        server.notes[f"privacy/epsilon/{name}"] = cost.epsilon
