"""The lead's job in NVIDIA FLARE: greets the hospitals, then trains one run after the other with fdamed's own loop."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller, Task
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fdamed.cli.commands.federate import train_or_restore
from fdamed.config.loader import parse
from fdamed.config.study import Config
from fdamed.config.train import Network
from fdamed.core.errors import FdamedError
from fdamed.core.files import read_json, write_json
from fdamed.core.signals import Stopped, end_with_parent
from fdamed.federation.absences import DroppedOut
from fdamed.federation.messages import pack, unpack
from fdamed.federation.transport.flare.forwarder import TASK
from fdamed.federation.transport.flare.wire import Messages, content, question
from fdamed.federation.transport.wire import Wire, reply_body
from fdamed.pipeline import batching
from fdamed.pipeline.hospitals.facts import check_clocks, write_told
from fdamed.pipeline.hospitals.site import study_digest
from fdamed.pipeline.selection import StudyRun, all_runs

PERIOD = 0.05
"""Seconds between two looks at a task."""
log = logging.getLogger(__name__)


class Loop(Controller):  # type: ignore[misc]
    """FLARE's controller around `fdamed federate`."""

    def __init__(self, config: str, runs: list[str], report: bool, ended: str, shown: str) -> None:
        """`config`: the study as JSON; `report`: collect what it needs; `ended`: the file that is written when nothing
        is left; `shown`: the log."""
        super().__init__(task_check_period=PERIOD)
        self._study, self._runs, self._report = config, runs, report
        self._ended, self._shown = Path(ended), Path(shown)

    def start_controller(self, fl_ctx: FLContext) -> None:
        end_with_parent()
        handler = logging.FileHandler(self._shown)
        handler.setFormatter(logging.Formatter("%(message)s"))
        own = logging.getLogger("fdamed")
        own.handlers, own.propagate = [handler], False
        own.setLevel(logging.INFO)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        config = parse(read_json(self._study), self._study)
        network: Network = config.network  # type: ignore[assignment]  # checked by `fdamed lead`
        failed = ""
        try:
            told = self._greet(config, abort_signal, fl_ctx)
            write_told(config, told)
            seconds = 60.0 * network.answer_minutes
            wire = Messages(fl_ctx, seconds, abort_signal)
            runs = [StudyRun.federated(config, *batching.key(run)) for run in self._runs]
            batching.train_all(runs, lambda one: _train(one, wire))
            if self._report:  # an analysis is of all models
                from fdamed.pipeline.hospitals.collection import collect  # pandas, which training does not need

                wire.seconds = seconds * len(list(all_runs(config)))
                collect(config, wire)
        except FdamedError as error:
            failed = error.lines()
            log.error(failed)
        except Stopped:
            log.warning("the job was stopped; it resumes from the last round")
            return
        write_json(self._ended, {"failed": failed})

    def stop_controller(self, fl_ctx: FLContext) -> None:
        log.info("the job has ended")

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        log.warning("a result that nobody waits for was dropped (%s)", task_name)

    def _greet(self, config: Config, abort: Signal, fl_ctx: FLContext) -> dict[str, dict[str, Any]]:
        """Client -> what it has answered to hello; as a task, because FLARE brings it only when a client is ready."""
        clients, seconds, before = list(config.split.clients), 60.0, time.time()
        request = pack({"study": study_digest(config), "question": "hello"}, b"")
        task = Task(TASK, question(request, seconds), timeout=int(2 * seconds))
        self.broadcast_and_wait(task, fl_ctx, clients, min_responses=len(clients), abort_signal=abort)
        if abort.triggered:
            raise Stopped
        out = {}
        for asked in task.client_tasks:
            name, reply = asked.client.name, content(asked.client.name, asked.result)
            if isinstance(reply, DroppedOut):
                raise FdamedError(f"{name} did not answer ({reply.why})", f"hospital {name}", "See its own log.")
            reply_body(name, reply)
            out[name] = unpack(reply)[0]
        if missing := sorted(set(clients) - set(out)):
            fix = "Start `fdamed lead` again when every hospital is there."
            raise FdamedError(f"{', '.join(missing)} did not answer", "fdamed lead", fix)
        check_clocks(out, before, time.time())
        return {name: out[name] for name in clients}  # not in the order in which they came


def _train(one: StudyRun, wire: Wire) -> None:
    train_or_restore(one, one.config.train.threads, in_batch=True, wire=wire)
