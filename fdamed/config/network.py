"""The `network` section: where the server of a study over a network is, and how long it waits."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from fdamed.config.base import Strict

Host = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?$")]


class Network(Strict):
    """A study across hospitals (docs/how_to/run_across_hospitals.md)."""

    host: Host = Field(examples=["fl.example.org"])
    """Name of the server as the hospitals reach it; its certificate has this name."""
    port: Annotated[int, Field(ge=1024, le=65535)] = 8002
    """The one port of the server that hospitals connect to."""
    answer_minutes: Annotated[float, Field(gt=0)] = 60.0
    """Minutes that the server waits for the answer of a hospital; without one it is left out of the step."""
    wait_minutes: Annotated[float, Field(gt=0)] = 60.0
    """Minutes that the lead waits until every hospital is there."""
