"""At the server: bytes to the hospitals as FLARE's messages, all at once, and their replies in time."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Timer

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fdamed.core.signals import Stopped
from fdamed.federation.absences import DroppedOut, Reason
from fdamed.federation.transport.flare.forwarder import BYTES, SECONDS, TOPIC
from fdamed.federation.transport.wire import Wire

NOTICE = 30.0
"""Seconds after which the log says who is waited for."""
GRACE = 10.0
"""Seconds that the server waits longer than the hospital's forwarder, which then tells why there is no reply."""


log = logging.getLogger(__name__)


class Messages(Wire):
    """FLARE's auxiliary messages: a question waits for no polling."""

    def __init__(self, fl_ctx: FLContext, seconds: float, abort: Signal) -> None:
        self._context, self._seconds, self._abort = fl_ctx, seconds, abort

    def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes | DroppedOut]:
        same: dict[bytes, list[str]] = {}  # most questions are the same for all
        for client, request in requests.items():
            same.setdefault(request, []).append(client)
        replies: dict[str, Shareable] = {}
        waiting = "waiting for %.0f s for an answer of %s; each has %.0f s", NOTICE, ", ".join(requests), self._seconds
        notice = Timer(NOTICE, log.info, waiting)
        notice.daemon = True
        notice.start()
        if same:  # FLARE 2.9.0 cannot send several messages in one call (its multicast_aux_requests raises TypeError)
            with ThreadPoolExecutor(len(same)) as pool:
                for found in pool.map(self._send, same.values(), same.keys()):
                    replies |= found
        notice.cancel()
        if self._abort.triggered:
            raise Stopped
        return {client: content(client, replies.get(client)) for client in requests}

    def _send(self, clients: list[str], request: bytes) -> dict[str, Shareable]:
        message = shareable(request, self._seconds)
        engine = self._context.get_engine()
        with engine.new_context() as context:  # one for each thread
            found = engine.send_aux_request(clients, TOPIC, message, self._seconds + GRACE, context)
        return dict(found)

    def close(self) -> None:
        """Nothing to end: the messages are the job's, and the next phase uses them."""


def shareable(request: bytes, seconds: float) -> Shareable:
    """A request as FLARE's message."""
    out = Shareable()
    out[BYTES], out[SECONDS] = request, seconds
    return out


def content(client: str, reply: Shareable | None) -> bytes | DroppedOut:
    """The bytes of a reply, or why there are none."""
    code = ReturnCode.COMMUNICATION_ERROR if reply is None else reply.get_return_code()
    if code == ReturnCode.OK and reply is not None and isinstance(reply.get(BYTES), bytes):
        return bytes(reply[BYTES])
    if code in (ReturnCode.TIMEOUT, ReturnCode.COMMUNICATION_ERROR):
        return DroppedOut(client, "no answer in time", Reason.LATE)
    if code == ReturnCode.OK:
        return DroppedOut(client, "a reply without content", Reason.MALFORMED)
    return DroppedOut(client, f"the engine could not reach it ({code})", Reason.DISCONNECTED)
