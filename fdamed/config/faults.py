"""The `train.faults` section: simulated absences, lost messages and late answers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator, model_validator

from fdamed.config.base import Strict

KINDS = ("weights", "individual", "update", "statistic", "features", "scalar", "count")
"""Kinds of values in messages."""
EVERY = "every"
ROLES = ("target", "sources")
SWEPT = ("absent", "lost", "deadline", "quorum")
"""Keys that `runs.*.sweep` may vary like options of the method."""
Chance = Annotated[float, Field(ge=0, le=1)]


class Ways(Strict):
    """Probability that a message is lost, by direction."""

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
    """Absences, losses and delays, drawn from the seed: the same for every method."""

    absent: Chance = 0.0
    """Probability that a hospital is absent for a whole round."""
    away: dict[Annotated[int, Field(ge=1)], tuple[str, ...]] = Field({})
    """Round -> who else is absent: hospitals, `target` or `sources`."""
    lost: Lost = Field({})
    """Probability that a message is lost: a number, or by kind or step, such as {update: 0.1, weights: {up: 0.2}}."""
    minutes: Minutes | None = None
    """How long an answer takes; answers after the deadline are not used."""
    deadline: Annotated[float, Field(gt=0)] | None = None
    """Minutes that the server waits for an answer."""
    spare: tuple[str, ...] = ()
    """Who has no random faults: hospitals, `target` or `sources`."""
    quorum: Annotated[int, Field(ge=0)] = 1
    """With fewer sources than this a round is lost and changes nothing; 0: methods continue without sources."""

    @field_validator("lost")
    @classmethod
    def _contents_are_known(cls, lost: dict[str, Ways]) -> dict[str, Ways]:
        if not lost.keys() <= {EVERY, *KINDS}:
            from fdamed.config.loader import catalog

            steps = {line["step"] for method in catalog().values() for line in method["wire"]}
            allowed = [EVERY, *KINDS, *sorted(steps)]
            unknown = [key for key in lost if key not in allowed]
            if unknown:
                raise ValueError(f"no message has {', '.join(unknown)}; allowed: {', '.join(allowed)}")
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
