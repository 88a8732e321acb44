"""At a hospital: FLARE's client hands every request to the hospital's own process, and its reply back.

It runs in FLARE's job process and has neither data nor a model: what it can reach is one socket.
"""

from __future__ import annotations

import time
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fdamed.core.files import read_json
from fdamed.core.signals import end_with_parent
from fdamed.federation.transport.flare.parts import AT, KEY, part_of, whole
from fdamed.federation.transport.local_socket import ask

TOPIC, TASK = "fdamed", "hello"
SECONDS = "seconds"
"""Key of a message: how long the server waits for the reply."""
SETTINGS = "fdamed.json"
"""In the kit's `local` folder: the socket of the hospital's process."""


class Forwarder(Executor):  # type: ignore[misc]
    """Forwards requests of the server to the hospital's process."""

    def __init__(self) -> None:
        super().__init__()
        self._key, self._reply = "", b""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            end_with_parent()
            fl_ctx.get_engine().register_aux_message_handler(TOPIC, self.forward)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """The first question is a task: FLARE brings it only when this client is ready."""
        return self.forward(task_name, shareable, fl_ctx)

    def forward(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """The first part of the hospital's reply, or a later one; without a reply in time, the reason alone."""
        key, engine = request[KEY], fl_ctx.get_engine()
        if AT in request:
            return part_of(self._reply, request[AT]) if key == self._key else make_reply(ReturnCode.BAD_REQUEST_DATA)
        end = time.monotonic() + float(request[SECONDS])

        def fetch(at: int) -> Shareable | None:
            with engine.new_context() as context:
                asked, seconds = Shareable({KEY: key, AT: at}), max(1.0, end - time.monotonic())
                return next(iter(engine.send_aux_request(None, TOPIC, asked, seconds, context).values()), None)

        try:
            question = whole(request, fetch)
        except ConnectionError:
            return make_reply(ReturnCode.COMMUNICATION_ERROR)
        settings = read_json(engine.get_workspace().get_file_path_in_site_config(SETTINGS))
        reply = ask(Path(settings["socket"]), question, end - time.monotonic())
        if reply is None:
            return make_reply(ReturnCode.TIMEOUT)
        self._key, self._reply = key, reply
        return part_of(reply)
