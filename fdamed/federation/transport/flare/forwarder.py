"""At a hospital: FLARE's client hands every request to the hospital's own process, and its reply back.

It runs in FLARE's job process and has neither data nor a model: what it can reach is one socket.
"""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fdamed.core.files import read_json
from fdamed.core.signals import end_with_parent
from fdamed.federation.transport.local_socket import ask

TOPIC, TASK = "fdamed", "hello"
BYTES, SECONDS = "bytes", "seconds"
"""Keys of a message: its content, and how long the server waits for the reply."""
SETTINGS = "fdamed.json"
"""In the kit's `local` folder: the socket of the hospital's process."""


class Forwarder(Executor):  # type: ignore[misc]
    """Forwards requests of the server to the hospital's process."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            end_with_parent()
            fl_ctx.get_engine().register_aux_message_handler(TOPIC, self.forward)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """The first question is a task: FLARE brings it only when this client is ready."""
        return self.forward(task_name, shareable, fl_ctx)

    def forward(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """The hospital's reply to a request; without one in time, the reason alone."""
        settings = read_json(fl_ctx.get_engine().get_workspace().get_file_path_in_site_config(SETTINGS))
        reply = ask(Path(settings["socket"]), request[BYTES], float(request[SECONDS]))
        if reply is None:
            return make_reply(ReturnCode.TIMEOUT)
        out = make_reply(ReturnCode.OK)
        out[BYTES] = reply
        return out
