"""What noise at the sources has cost their patients in a run: read from each hospital's own account, in its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdamed.config import Config
from fdamed.runs import Run
from fdamed.stages.places import Places

if TYPE_CHECKING:
    from fdamed.federation.network import Network


def costs_of(config: Config, spec: Run, net: Network, memory: Callable[[str, str], Path]) -> dict[str, Any]:
    """`privacy` of run.json: settings and, for each source, epsilon, delta and the steps behind it; {} without noise.

    `memory`: a hospital and a file's name -> the file among its memories.
    """
    wanted = config.differential_of(spec)
    if wanted is None:
        return {}
    from fdamed.data.loader import patients
    from fdamed.federation.accounts import FILE, lines_in
    from fdamed.federation.memory import read_memory
    from fdamed.private import Mechanism, epsilon

    sources: dict[str, Any] = {}
    for party in net.sources:
        whose = patients(Places.of(config).party(party), ("train", "adapt"))
        delta = Mechanism(wanted.multiplier, wanted.clip, whose, wanted.delta).allowance
        copy = memory(party, "cost.safetensors")
        remembered = read_memory(copy) if net.save_memory(party, copy) else {}
        copy.unlink(missing_ok=True)
        spent = lines_in(remembered, memory(party, FILE) if wanted.secure else None)
        if spent:
            sources[party] = {"epsilon": epsilon(spent, delta), "delta": delta, "spent": [list(s) for s in spent]}
    if not sources:
        return {}
    return {"unit": "patient", "mode": "secure" if wanted.secure else "reproducible"} | {
        "multiplier": wanted.multiplier,
        "clip": wanted.clip,
        "sources": sources,
    }
