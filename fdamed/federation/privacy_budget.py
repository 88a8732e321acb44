"""The privacy budget that a client's training has spent: recorded at the client, reported as epsilon after each round.

Reproducible noise: the account is part of the client's state and of the checkpoint, so a round that is repeated after a
kill gives the same bits and costs nothing more. Secure noise: a repeated round gives other bits, so the account is a
file that is written before the answer is sent and never reset.
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
    line = (noise.multiplier, noise.probability(batch), steps)
    if client.account is not None:
        append(client.account, line)
    else:
        client.memory[SPENT] = torch.tensor(_merged([*lines_in(client.memory), line]), dtype=torch.float64)


def append(path: Path, line: Spent) -> None:
    """Add a line to an account file, durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        whole, size = _whole_lines(path), path.stat().st_size
        file.truncate(min(size, len(whole)))
        file.write(whole[size:] + json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def lines_in(memory: Mapping[str, Tensor], account: Path | None = None) -> list[Spent]:
    """The account of a client, from its file or its state, with steps under the same conditions on one line."""
    if account is None:
        table = memory.get(SPENT, torch.empty(0, 3)).tolist()
        return [(multiplier, rate, int(steps)) for multiplier, rate, steps in table]
    lines = []
    for number, line in enumerate(_whole_lines(account).splitlines() if account.exists() else (), 1):
        if not (spent := _parse(line)):
            fix = "Restore the file from a backup: without it the budget spent so far is unknown."
            raise FdamedError(f"line {number} of the account of privacy is damaged", str(account), fix)
        lines.append(spent)
    return _merged(lines)


def _whole_lines(path: Path) -> bytes:
    """The complete lines of an account. The answer of a line that a kill or a full disk truncated was never sent."""
    whole, newline, last = path.read_bytes().rpartition(b"\n")
    return whole + newline + (last + b"\n" if last and _parse(last) else b"")


def _parse(line: bytes) -> Spent | None:
    """The entry in a line; None: it cannot be read."""
    try:
        multiplier, rate, steps = map(float, json.loads(line))
        return multiplier, rate, int(steps)
    except (ValueError, TypeError, OverflowError):
        return None


def _merged(lines: list[Spent]) -> list[Spent]:
    steps_of: dict[tuple[float, float], int] = {}
    for multiplier, rate, steps in lines:
        steps_of[multiplier, rate] = steps_of.get((multiplier, rate), 0) + steps
    return [(multiplier, rate, steps) for (multiplier, rate), steps in steps_of.items()]


@step("report_privacy_cost", noised=True)
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
