"""What an unreliable network does to a study: the `train.faults` section of the configuration."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator, model_validator

from fdamed.config.base import Strict

KINDS = ("weights", "individual", "update", "statistic", "features", "scalar", "count")
"""Kinds of knowledge that a message can carry."""
EVERY = "every"
ROLES = ("target", "sources")
SWEPT = ("absent", "lost", "deadline", "quorum")
"""What `runs.*.sweep` may go over as if it were an option of the method."""
Chance = Annotated[float, Field(ge=0, le=1)]


class Ways(Strict):
    """Chance that a message is lost, by direction."""

    down: Chance = 0.0
    """From the server to a hospital, which then does nothing."""
    up: Chance = 0.0
    """From a hospital, which has done its work."""


def _by_content(given: Any) -> Any:
    """A number holds for every message; a number for a kind holds for both directions."""
    table = given if isinstance(given, dict) else {EVERY: given}
    return {k: v if isinstance(v, dict | Ways) else {"down": v, "up": v} for k, v in table.items()}


Lost = Annotated[
    dict[str, Ways], BeforeValidator(_by_content, json_schema_input_type=Chance | dict[str, Chance | Ways])
]


class Minutes(Strict):
    """How long an answer takes: log-normal, drawn anew for each question."""

    median: Annotated[float, Field(gt=0)]
    spread: Annotated[float, Field(ge=0)] = 0.5
    """Standard deviation of the logarithm; 0: always the median."""
    slower: dict[str, Annotated[float, Field(gt=0)]] = Field({})
    """Hospital, `target` or `sources` -> factor on its times."""


class Faults(Strict):
    """Who is away, what is lost, who is late: drawn from the seed, the same for every method."""

    absent: Chance = 0.0
    """Chance that a hospital is away for a whole round."""
    away: dict[Annotated[int, Field(ge=1)], tuple[str, ...]] = Field({})
    """Round -> who is away in it besides: hospitals, `target` or `sources`."""
    lost: Lost = Field({})
    """Chance that a message is lost: a number, or by kind or step, such as {update: 0.1, weights: {up: 0.2}}."""
    minutes: Minutes | None = None
    """How long an answer takes; what comes after the deadline is not used."""
    deadline: Annotated[float, Field(gt=0)] | None = None
    """Minutes that the server waits for an answer."""
    spare: tuple[str, ...] = ()
    """Whom chance never hits: hospitals, `target` or `sources`."""
    quorum: Annotated[int, Field(ge=0)] = 1
    """With fewer sources than this a round is lost, and everything stays as it was; 0: methods go on without any."""

    @field_validator("lost")
    @classmethod
    def _contents_are_known(cls, lost: dict[str, Ways]) -> dict[str, Ways]:
        unknown = [k for k in lost if k not in (*KINDS, EVERY)]
        steps = _steps() if unknown else frozenset()
        unknown = [k for k in unknown if k not in steps]
        if unknown:
            allowed = ", ".join([EVERY, *KINDS, *sorted(steps)])
            raise ValueError(f"no message has {', '.join(unknown)}; allowed: {allowed}")
        return lost

    @model_validator(mode="after")
    def _time_and_deadline(self) -> Faults:
        if (self.minutes is None) != (self.deadline is None):
            raise ValueError("`minutes` and `deadline` go together: one without the other does nothing")
        return self

    def misfit(self, clients: tuple[str, ...]) -> str | None:
        """What does not fit these hospitals; None: nothing."""
        named = {p for group in self.away.values() for p in group} | set(self.spare)
        named |= set(self.minutes.slower) if self.minutes else set()
        stray = sorted(named - {*clients, *ROLES})
        if stray:
            return f"names {', '.join(stray)}; allowed: {', '.join([*clients, *ROLES])}"
        if self.quorum >= len(clients):
            return f"asks for a quorum of {self.quorum}; there are {len(clients) - 1} sources"
        return None


def _steps() -> frozenset[str]:
    """Names of the steps that some method asks for."""
    from fdamed.config.loader import catalog

    return frozenset(line["step"] for method in catalog().values() for line in method["wire"])
