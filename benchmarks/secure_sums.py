"""What masks cost: bytes and seconds of one aggregation beside the plain one, by sources and size of the model.

`python -m benchmarks.secure_sums` prints one JSON line for each size. Answers are ready-made random vectors, so that
only masks, checks and the sum are measured; each side is timed on the CPU clock, in one process, best of three. The
error is that of the mean, beside the bound of `fixed_point`.
"""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import numpy as np
import torch
from torch import nn

from fdamed.config.privacy import NO_MINIMUM
from fdamed.config.train import Recipe
from fdamed.data.loader import Labeled
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Check, Images, Statistic, message
from fdamed.federation.method import Model
from fdamed.federation.secure_sums.client_steps import masked
from fdamed.federation.secure_sums.transport import SecureSums
from fdamed.federation.server import Server
from fdamed.federation.transport.base import InProcess, Transport
from fdamed.models.flat import FlatModel
from fdamed.ops.aggregation import mean

SIZES = {"3 MB": 728_000, "45 MB": 11_200_000}
VALUES: dict[str, torch.Tensor] = {}


@message
class Answer:
    """A vector of any size, and the images behind it."""

    v: Annotated[Statistic, Check(shape=lambda _, __: VALUES["a"].shape)]
    n: Images


@step("benchmark_secure_sums.tell")
def tell(client: Client, ask: Model) -> Answer:
    """The vector that was made for this client."""
    return Answer(v=VALUES[client.name], n=100 + 50 * (ord(client.name) - ord("a")))


def hospitals(sources: int) -> InProcess:
    """Clients with one image each, which nobody looks at."""
    model, data = FlatModel(nn.Linear(2, 2)), Labeled(np.zeros((1, 2, 2), np.uint8), np.zeros(1, np.int64), {})
    recipe, release = Recipe(lr=0.1), frozenset({"statistic", "count"})
    made = {
        n: Client(n, data, model, recipe, 0, release, role="source", minimum=NO_MINIMUM) for n in "abcdefghij"[:sources]
    }
    return InProcess(made)


def measured(transport: Transport, clients: list[str]) -> tuple[float, int, dict[str, Answer]]:
    """CPU seconds of one question to all with the server's mean, the bytes that all clients sent, the answers."""
    best, found = float("inf"), dict[str, Answer]()
    for _ in range(3):
        server = Server(transport, "the target", "benchmark")
        server.begin(1, 1)
        begin = time.process_time()
        found = server.ask_all(clients, tell, Model(x=torch.zeros(6)))
        mean([r.v for r in found.values()], [r.n for r in found.values()])
        best = min(best, time.process_time() - begin)
    return best, sum(line["bytes"] for line in server.ledger.lines() if line["to"] == "server"), found


def one_side(inner: InProcess, clients: list[str]) -> tuple[float, float]:
    """CPU seconds of one client's masked answer, and of all of the server's work with the masks."""
    spent = {"client": 0.0, "all": 0.0}

    class Timed(InProcess):
        def deliver(self, client, step, nth, msg):  # type: ignore[no-untyped-def]
            begin = time.process_time()
            reply = super().deliver(client, step, nth, msg)
            spent["all"] += time.process_time() - begin
            if step.name == masked(tell).name and client == clients[0]:
                spent["client"] = time.process_time() - begin
            return reply

    server = Server(SecureSums(Timed(inner.clients), "the target", "samples"), "the target", "benchmark")
    server.begin(1, 1)
    begin = time.process_time()
    server.ask_all(clients, tell, Model(x=torch.zeros(6)))
    return spent["client"], time.process_time() - begin - spent["all"]


def main() -> None:
    torch.set_num_threads(1)
    for name, size in SIZES.items():
        for sources in (3, 5, 10):
            inner = hospitals(sources)
            clients = sorted(inner.clients)
            VALUES.update({c: torch.randn(size, generator=torch.Generator().manual_seed(ord(c))) for c in clients})
            plain_seconds, plain_bytes, plain = measured(inner, clients)
            seconds, sent, found = measured(SecureSums(inner, "the target", "samples"), clients)
            n = [plain[c].n for c in clients]
            exact = sum(k * plain[c].v.double() for k, c in zip(n, clients, strict=True)) / sum(n)  # type: ignore[misc]
            client, server = one_side(inner, clients)
            result: dict[str, Any] = {"benchmark": "secure_sums", "model": name, "sources": sources}
            result |= {"plain_s": round(plain_seconds, 3), "masked_s": round(seconds, 3)}
            result |= {"client_s": round(client, 3), "server_s": round(server, 3)}
            result |= {
                "bytes_ratio": round(sent / plain_bytes, 3),
                "keys_bytes_each": (sent - 2 * plain_bytes) // sources,
            }
            result |= {"error": float((found["a"].v.double() - exact).abs().max())}
            result |= {"bound": float(sources / (2 * sum(n)) * 2**-25 + 2**-24 * float(exact.abs().max()))}
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
