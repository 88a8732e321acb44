"""Results pinned in golden/pinned_results.json: what a redesign must not change by accident.

The last bits of a result depend on the CPU, so a pin is a digest of what is exact (ledger, names, shapes) and a few
numbers of what is not: the norm of all values and projections of them, compared to 3 digits. torch draws other normal
numbers without AVX2, so there the pins are skipped. Where every bit counts,
`FDAMED_BITS=file pytest <file>` writes digests of all bits into a file at first, and compares with them ever after.
`FDAMED_REPIN=1 pytest -n 0 <file>` writes the pins that are missing or differ.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

FILE = Path(__file__).resolve().parents[1] / "golden" / "pinned_results.json"
REPIN = os.environ.get("FDAMED_REPIN") == "1"
BITS = os.environ.get("FDAMED_BITS")
CLOSE = 1e-3
"""Largest difference, as a share of the norm, that is put down to the CPU."""
Found = dict[str, Any]
"""Name -> a digest, or (digest of what is exact, all values)."""


def pinned() -> dict[str, dict[str, Any]]:
    """Section -> case -> name -> pin."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}


def check(section: str, case: str, found: Found, close: float = CLOSE) -> None:
    """Compare with the pin, or write it when asked to; `close` instead of CLOSE for a case that is chaotic."""
    if BITS:
        _compare_bits(Path(BITS), f"{section}: {case}", {name: _bits(value) for name, value in found.items()})
    shown = {
        name: value if isinstance(value, str) else [value[0], *_summary(value[1])] for name, value in found.items()
    }
    pin = pinned().get(section, {}).get(case)
    changed = sorted(k for k in shown.keys() | (pin or {}) if not _alike((pin or {}).get(k), shown.get(k), close))
    if REPIN:
        if changed:
            _write(section, case, shown)
        return
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        pytest.skip("results are pinned for CPUs with AVX2 or AVX512")
    assert pin is not None, f"{case} has no pin in {FILE.name}. If it is new: FDAMED_REPIN=1 pytest -n 0 <this file>"
    assert not changed, (
        f"results changed: {', '.join(changed)} of {case}. If this is intended, list it in docs/decisions and repin: "
        f"FDAMED_REPIN=1 pytest -n 0 <this file>. Pinned {pin}, found {shown}"
    )


def check_complete(section: str, cases: Iterable[str]) -> None:
    """No pin without its case: a case that vanishes is a change, too. Repinning drops such pins."""
    known, pins = set(cases), pinned()
    if REPIN:
        pins[section] = {case: pin for case, pin in pins.get(section, {}).items() if case in known}
        _save(pins)
        return
    gone = sorted(pins.get(section, {}).keys() - known)
    assert not gone, (
        f"pinned, but no longer tested: {', '.join(gone)}. If this is intended, list it in docs/decisions and repin: "
        "FDAMED_REPIN=1 pytest -n 0 <this file>"
    )


def of_tensors(tensors: Mapping[str, Tensor]) -> tuple[str, np.ndarray]:
    """A digest of names, types and shapes, and all values in the order of names."""
    order = sorted(tensors.items())
    shapes = "".join(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n" for name, tensor in order)
    values = [tensor.detach().cpu().double().flatten().numpy() for _, tensor in order]
    return _digest(shapes), np.concatenate(values) if values else np.empty(0)


def of_metrics(lines: Iterable[Mapping[str, Any]]) -> tuple[str, np.ndarray]:
    """A digest of the names, and of which values are missing, and the values."""
    items = [(name, value) for line in lines for name, value in sorted(line.items())]
    missing = "".join(f"{name} {value is None}\n" for name, value in items)
    return _digest(missing), np.array([float(value) for _, value in items if value is not None])


def of_ledger(lines: Iterable[Mapping[str, Any]]) -> str:
    """Steps count by the last part of their name, so that a module may move. Lines are sorted after that."""
    short = [{**line, "step": line["step"].rpartition(".")[2]} for line in lines]
    ordered = sorted(short, key=lambda line: json.dumps(line, sort_keys=True))
    return _digest(json.dumps(ordered, sort_keys=True, separators=(",", ":")))


def _summary(values: np.ndarray) -> list[float]:
    """The norm of the values, and their products with three waves of unit length."""
    waves = [np.cos(np.arange(len(values)) * k + k) for k in (0.7, 1.3, 2.9)]
    sums = [float(values @ (wave / max(1e-12, float(np.linalg.norm(wave))))) for wave in waves]
    return [float(f"{x:.6g}") for x in (float(np.linalg.norm(values)), *sums)]


def _alike(pin: Any, found: Any, close: float) -> bool:
    if not isinstance(pin, list) or not isinstance(found, list) or pin[0] != found[0]:
        return bool(pin == found)
    return bool(np.allclose(pin[1:], found[1:], rtol=0.0, atol=close * pin[1] + 1e-12))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _bits(value: Any) -> str:
    return value if isinstance(value, str) else value[0] + hashlib.sha256(value[1].tobytes()).hexdigest()[:16]


def _compare_bits(file: Path, case: str, found: dict[str, str]) -> None:
    with file.open("a+", encoding="utf-8") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        f.seek(0)
        known = dict(json.loads(line) for line in f)
        if case not in known:
            f.write(json.dumps([case, found]) + "\n")
    assert known.get(case, found) == found, f"bits of {case} differ from those in {file}"


def _write(section: str, case: str, shown: Found) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        raise RuntimeError("repin in one process: pytest -n 0")
    pins = pinned()
    pins.setdefault(section, {})[case] = shown
    _save(pins)


def _save(pins: Any) -> None:
    FILE.write_text(json.dumps(pins, indent=1, sort_keys=True) + "\n", encoding="utf-8")
