"""At the server: bytes to the hospitals as FLARE's messages, all at once, and their replies in time."""

from __future__ import annotations

import gc
import logging
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Timer

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fdamed.core.signals import Stopped
from fdamed.federation.absences import DroppedOut, Reason
from fdamed.federation.transport.flare.forwarder import SECONDS, TOPIC
from fdamed.federation.transport.flare.parts import AT, KEY, part_of, whole
from fdamed.federation.transport.wire import Wire

NOTICE = 30.0
"""Seconds after which the log says who is waited for."""
GRACE = 10.0
"""Seconds that the server waits longer than the hospital's forwarder, which then tells why there is no reply."""


log = logging.getLogger(__name__)


class Messages(Wire):
    """FLARE's auxiliary messages: a question waits for no polling. One object for a job."""

    def __init__(self, fl_ctx: FLContext, seconds: float, abort: Signal) -> None:
        self._context, self.seconds, self._abort = fl_ctx, seconds, abort
        self._requests: dict[str, bytes] = {}
        collect_soon()
        fl_ctx.get_engine().register_aux_message_handler(TOPIC, self._part)

    def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes | DroppedOut]:
        waiting = "waiting for %.0f s for an answer of %s; each has %.0f s", NOTICE, ", ".join(requests), self.seconds
        notice = Timer(NOTICE, log.info, waiting)
        notice.daemon = True
        notice.start()
        with ThreadPoolExecutor(max(1, len(requests))) as pool:
            replies = dict(zip(requests, pool.map(self._ask, requests.keys(), requests.values()), strict=True))
        notice.cancel()
        if self._abort.triggered:
            raise Stopped
        return replies

    def _ask(self, client: str, request: bytes) -> bytes | DroppedOut:
        message, engine = question(request, self.seconds), self._context.get_engine()

        def send(asked: Shareable) -> Shareable | None:
            with engine.new_context() as context:
                found = engine.send_aux_request([client], TOPIC, asked, self.seconds + GRACE, context)
            return (found or {}).get(client)

        self._requests[message[KEY]] = request
        reply = send(message)
        del self._requests[message[KEY]]
        return content(client, reply, lambda at: send(Shareable({KEY: message[KEY], AT: at})))

    def _part(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """A hospital fetches a part of its question."""
        found = self._requests.get(request[KEY])
        return make_reply(ReturnCode.BAD_REQUEST_DATA) if found is None else part_of(found, request[AT])

    def close(self) -> None:
        """Nothing to end: the messages are the job's, and the next phase uses them."""


def collect_soon() -> None:
    """FLARE leaves every message in a cycle of objects: few for Python's collector, and megabytes for the machine."""
    for step in (gc.collect, gc.freeze, gc.collect):  # the second one forgets how many objects there were
        step()
    gc.set_threshold(100, 5, 5)


def question(request: bytes, seconds: float) -> Shareable:
    """A request as FLARE's message, or its first part."""
    out = part_of(request)
    out[SECONDS], out[KEY] = seconds, secrets.token_hex(16)
    return out


def content(
    client: str, reply: Shareable | None, fetch: Callable[[int], Shareable | None] = lambda at: None
) -> bytes | DroppedOut:
    """The bytes of a reply, with the parts that are fetched; or why there are none."""
    code = ReturnCode.COMMUNICATION_ERROR if reply is None else reply.get_return_code()
    try:
        if code == ReturnCode.OK and reply is not None:
            return whole(reply, fetch)  # type: ignore[return-value]  # a memoryview reads the same
    except ValueError:
        return DroppedOut(client, "a reply without content", Reason.MALFORMED)
    except ConnectionError:
        code = ReturnCode.COMMUNICATION_ERROR
    if code in (ReturnCode.TIMEOUT, ReturnCode.COMMUNICATION_ERROR):
        return DroppedOut(client, "no answer in time", Reason.LATE)
    return DroppedOut(client, f"the engine could not reach it ({code})", Reason.DISCONNECTED)
