"""`fdamed serve` at a hospital whose process answers the steps of one round with random bytes."""

from __future__ import annotations

import os
from pathlib import Path

from fdamed.cli.commands import serve
from fdamed.federation.messages import unpack
from fdamed.pipeline.hospitals.resident import Hospital

ROUND = 3
honest_resident, honest_answer = serve.resident, Hospital.answer


def answer(hospital: Hospital, request: bytes) -> bytes:
    reply = honest_answer(hospital, request)
    return os.urandom(len(reply)) if unpack(request)[0].get("round") == ROUND else reply


def resident(file: Path) -> None:
    """The hospital's own process."""
    Hospital.answer = answer  # type: ignore[method-assign]
    honest_resident(file)


if __name__ == "__main__":
    from fdamed.cli.main import main

    serve.resident = resident
    raise SystemExit(main())
