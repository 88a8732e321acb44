"""Why a client's answer is missing or not used, or a whole round lost."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple


class Reason(StrEnum):
    """Why a client is missing from a step of a round; the `reason` of a line in absences.jsonl."""

    ABSENT = "absent"
    LOST = "lost"
    LATE = "late"
    DISCONNECTED = "disconnected"
    FAILED = "failed"
    """The client answered with an error; one in its first answer to a step is the study's, and ends the run."""
    NOT_INVITED = "not invited"
    QUARANTINED = "quarantined"
    AGGREGATE = "unusable aggregate"
    """The answers were accepted, but their aggregate is not a valid model."""
    QUORUM = "below quorum"
    MALFORMED = "malformed"
    SHAPE = "shape"
    NOT_FINITE = "not finite"
    COUNT = "count"
    VALUE = "value"
    VARIANCE = "negative variance"
    REPLAY = "replay"
    NORM = "norm"
    NO_IMAGES = "no images"
    UNCHANGED = "unchanged"
    DIRECTION = "direction"

    @property
    def strikes(self) -> bool:
        """Whether it brings the client nearer to quarantine: no honest client sends such an answer."""
        return self in STRIKES

    @property
    def excludes(self) -> bool:
        """Whether validation excluded the answer; the client is not asked again in this round."""
        return self in EXCLUSIONS


STRIKES = frozenset(
    {Reason.MALFORMED, Reason.SHAPE, Reason.NOT_FINITE, Reason.COUNT}
    | {Reason.VALUE, Reason.VARIANCE, Reason.REPLAY, Reason.NORM}
)
EXCLUSIONS = STRIKES | {Reason.NO_IMAGES, Reason.UNCHANGED, Reason.DIRECTION}


class Fault(NamedTuple):
    """Why validation does not accept an answer."""

    reason: Reason
    why: str


class DroppedOut(Exception):
    """A client did not answer, its answer cannot be used, or the round cannot go on."""

    def __init__(
        self, client: str, why: str, reason: Reason = Reason.ABSENT, asked: bool = True, reply: Any = None
    ) -> None:
        """`asked`: the question left the server; `reply`: the answer left the client, but did not arrive in time."""
        super().__init__(f"{client}: {why}")
        self.client, self.why, self.reason, self.asked, self.reply = client, why, reason, asked, reply
