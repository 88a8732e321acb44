"""Results pinned as digests in golden/pinned_results.json: what a redesign must not change by accident.

Floating-point results depend on torch and on the CPU. Pins are therefore kept for each "torch version / CPU type",
and a machine without pins of its own skips. They also depend on the package's C libraries (`make setup` builds them).
`FDAMED_REPIN=1 pytest -n 0 <file>` writes the pins of this machine anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

FILE = Path(__file__).resolve().parents[1] / "golden" / "pinned_results.json"
REPIN = os.environ.get("FDAMED_REPIN") == "1"
Digests = dict[str, str]


def platform() -> str:
    return f"torch {torch.__version__} / {torch.backends.cpu.get_cpu_capability()}"


def pinned() -> dict[str, dict[str, dict[str, Digests]]]:
    """Platform -> section -> case -> what -> digest."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}


def section(name: str) -> dict[str, Digests]:
    """The pins of this machine; skips where it has none."""
    pins = pinned()
    if platform() not in pins:
        pytest.skip(f"no results are pinned for {platform()}, only for: {', '.join(pins)}; FDAMED_REPIN=1 pins them")
    return pins[platform()].get(name, {})


def check(name: str, case: str, found: Digests) -> None:
    """Compare with the pin, or write it when asked to."""
    if REPIN:
        _write(name, case, found)
        return
    pin = section(name).get(case)
    assert pin is not None, f"{case} has no pin in {FILE.name}. If it is new: FDAMED_REPIN=1 pytest -n 0 <this file>"
    changed = sorted(k for k in pin.keys() | found.keys() if pin.get(k) != found.get(k))
    assert not changed, (
        f"results changed: {', '.join(changed)} of {case}. If this is intended, list it in docs/decisions and repin: "
        "FDAMED_REPIN=1 pytest -n 0 <this file>."
    )


def check_complete(name: str, cases: Iterable[str]) -> None:
    """No pin without its case: a case that vanishes is a change, too. Repinning drops such pins."""
    known = set(cases)
    if REPIN:
        pins = pinned()
        here = pins.setdefault(platform(), {})
        here[name] = {case: pin for case, pin in here.get(name, {}).items() if case in known}
        _save(pins)
        return
    gone = sorted(section(name).keys() - known)
    assert not gone, (
        f"pinned, but no longer tested: {', '.join(gone)}. If this is intended, list it in docs/decisions and repin: "
        "FDAMED_REPIN=1 pytest -n 0 <this file>"
    )


def of_tensor(tensor: Tensor) -> str:
    return of_tensors({"": tensor})


def of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Names, types, shapes and bytes, in the order of names."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


def of_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def of_ledger(lines: Iterable[Mapping[str, Any]]) -> str:
    """Steps count by the last part of their name, so that a module may move. Lines are sorted after that."""
    short = [{**line, "step": line["step"].rpartition(".")[2]} for line in lines]
    return of_json(sorted(short, key=lambda line: json.dumps(line, sort_keys=True)))


def _write(name: str, case: str, found: Digests) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        raise RuntimeError("repin in one process: pytest -n 0")
    pins = pinned()
    pins.setdefault(platform(), {}).setdefault(name, {})[case] = found
    _save(pins)


def _save(pins: Any) -> None:
    FILE.write_text(json.dumps(pins, indent=1, sort_keys=True) + "\n", encoding="utf-8")
