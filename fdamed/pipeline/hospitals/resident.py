"""A hospital in a study over a network: a process that holds its data and answers bytes with bytes.

It answers only questions of the study that it has agreed to, under its own policy, and notes in its own files what it
was asked for and what was let out. Its state and its last reply are on disk before the reply leaves: killed at any
moment and started again, it answers the same question with the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from fdamed.config.runs import THEN
from fdamed.config.study import Config
from fdamed.core.counts import counts_of
from fdamed.core.disclosure import outside, released_round, without_scores
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, room_for
from fdamed.federation.client import Client, find_step
from fdamed.federation.messages import WireError, kinds, pack, unpack
from fdamed.federation.privacy_budget import FILE as ACCOUNT
from fdamed.federation.questions import Home, unreadable
from fdamed.federation.secure_sums.certificates import Certificates
from fdamed.federation.storage.client_state import pack_state, unpack_state
from fdamed.federation.transport.endpoint import UNEXPECTED, error_reply, handle_request
from fdamed.pipeline.batching import key
from fdamed.pipeline.clients import build_client, remembered, resident
from fdamed.pipeline.fingerprint import machine
from fdamed.pipeline.hospitals.facts import local_facts
from fdamed.pipeline.hospitals.homes import home_of
from fdamed.pipeline.hospitals.report_questions import ANSWERS, RELEASED
from fdamed.pipeline.hospitals.site import Site, own_config, study_digest
from fdamed.pipeline.paths import Places
from fdamed.pipeline.phases import Phase, phases, shared_folder, stream_seed
from fdamed.pipeline.selection import StudyRun

LAST = "last.bin"
"""The last reply of a phase, and the state after it."""
log = logging.getLogger(__name__)


@dataclass
class Opened:
    """The client of one phase of a run, and the last request that it has answered with a step."""

    one: StudyRun
    phase: Phase
    client: Client
    home: Home
    file: Path
    request: str = ""
    reply: bytes = b""


class Hospital:
    """The hospital's side: `answer` is all that anybody outside can reach."""

    def __init__(self, site: Site, study: Config, certificates: Certificates | None = None) -> None:
        """`certificates`: those of its kit; None: nobody's keys are checked, as on one machine."""
        self.site, self.config, self.digest = site, own_config(site, study), study_digest(study)
        self.name, self.threads = site.client, site.threads or study.train.threads
        self._certificates = certificates
        self.places = Places.of(self.config)
        self.folder = self.places.client(self.name)
        self._opened: dict[tuple[str, str], Opened] = {}

    def answer(self, request: bytes) -> bytes:
        """The reply to a request: an answer, or an error that names nothing of this hospital's files and data."""
        try:
            return self._answer(request)
        except FdamedError as error:
            return self._refusal(error)
        except WireError as error:
            return self._refusal(unreadable(self.name, error))
        except Exception:
            log.exception("a question failed")
            return pack({"ok": False, "error": UNEXPECTED}, b"")

    def _refusal(self, error: FdamedError) -> bytes:
        log.error("%s", error.lines())
        return error_reply(FdamedError(self._public(error.what), f"hospital {self.name}", self._public(error.fix)))

    def _public(self, text: str) -> str:
        """A text without the paths of this hospital."""
        root = str(getattr(self.site.data, "root", ""))
        for place in (root, str(Path(self.site.results).resolve()), self.site.results, str(Path.home())):
            text = text.replace(place, "(kept local)") if len(place) > 1 else text
        return text

    def _answer(self, request: bytes) -> bytes:
        head, body = unpack(request)
        if head.get("study") != self.digest:
            raise FdamedError(
                f"this hospital has agreed to the study {self.digest}, not to {str(head.get('study'))[:20]!r}",
                f"hospital {self.name}",
                "Use the study's file as it was when the hospital joined, or invite it again.",
            )
        if head.get("question") == "hello":
            return self._hello()
        if head.get("question") in ANSWERS:
            return self._for_report(head, bytes(body))
        opened = self._open(str(head.get("run")), str(head.get("phase")))
        seen = hashlib.sha256(request).hexdigest()
        if "step" in head and opened.request == seen:
            log.info("asked again for the same step: the same reply is sent")
            self._note(opened, head, opened.reply)
            return opened.reply
        name = type(opened.phase.method).name
        reply = handle_request(opened.client, name, request, opened.home)
        if isinstance(error := unpack(reply)[0].get("error"), list):
            reply = self._refusal(FdamedError(*error))
        if "step" in head:
            try:
                self._keep(opened, seen, reply)
                self._note(opened, head, reply)
            except Exception:  # such as a full disk: the state after a reply that was not sent is forgotten
                self._opened.clear()
                raise
        elif head.get("question") == "load":
            self._keep(opened, "", b"")
        elif head.get("question") == "prune" and "last" not in head:  # the run is finished
            opened.file.unlink(missing_ok=True)
        elif head.get("question") == "evaluate":
            reply = self._released_scores(reply)
            log.info("%s: evaluated a model for the server", opened.one.key)
        return reply

    # --- the phases of runs -------------------------------------------------------------------------------------------

    def _open(self, run: str, phase_name: str) -> Opened:
        """The client of a phase, as it was after its last answer, even if this process is a new one."""
        if (run, phase_name) in self._opened:
            return self._opened[run, phase_name]
        one = StudyRun.federated(self.config, *key(run))
        phase = next((p for p in phases(self.config, one.spec) if p.name == phase_name), None)
        if phase is None:
            raise WireError("the run has no such phase")
        method = type(phase.method)
        if self.site.methods is not None and method.name not in self.site.methods:
            raise FdamedError(
                f"{self.name} takes no part in {method.name}",
                f"hospital {self.name}",
                f"Remove this run, or let {self.name} add {method.name} to its `methods`.",
            )
        self._opened.clear()  # one at a time: a model and a cache are large
        states = self.places.memory(self.name, one.name, one.target, one.seed)
        model = resident(self.config, one.spec if phase.name != THEN else None)
        client = build_client(
            self.config,
            phase.spec,
            self.name,
            one.target,
            one.seed,
            method.target_labels,
            method.every_target_label,
            model,
            stream_seed(one.seed, phase),
            states / shared_folder(phase) / ACCOUNT,
            remembered(self.config, phase.spec, method.steps, self.threads),
            self._certificates,
        )
        account = states / shared_folder(phase) / ACCOUNT
        home = home_of(one, phase.spec, phase.method, self.name, model, partial(own_file, self.folder), account)
        opened = Opened(one, phase, client, home, states / phase.folder / LAST)
        if opened.file.exists():
            head, rest = unpack(opened.file.read_bytes())
            size = int(head["reply"])
            opened.request, opened.reply = str(head["request"]), bytes(rest[:size])
            client.memory = unpack_state(bytes(rest[size:]), f"client {self.name}")
        log.info("%s (%s): this hospital is %s", one.key, method.title, client.role)
        self._opened[run, phase_name] = opened
        return opened

    def _keep(self, opened: Opened, request: str, reply: bytes) -> None:
        """Write the state and the reply; without a state the reply can be computed again, and need not be synced."""
        state = pack_state(opened.client.memory)
        content = pack({"request": request, "reply": len(reply)}, reply + state)
        with atomic(opened.file, len(content), sync=bool(state)) as draft:
            draft.write_bytes(content)
        opened.request, opened.reply = request, reply

    # --- what is let out ----------------------------------------------------------------------------------------------

    def _hello(self) -> bytes:
        facts = local_facts(self.config, self.name)
        counts = counts_of(self.places.root, self.name)
        if not self.config.train.validation.directions:
            facts["positives"] = None
        log.info("the server has asked who is here")
        conditions = machine(self.config, self.threads, self.config.train.precision)
        told = {"facts": facts, "counts": outside("counts.json", counts), "machine": conditions, "time": time.time()}
        return pack({"ok": True} | told, b"")

    def _for_report(self, head: dict[str, Any], body: bytes) -> bytes:
        """The answer to a question of the report, whose models and analyses need the room of a phase's."""
        self._opened.clear()
        question = str(head["question"])
        kind, answer = ANSWERS[question]
        found = answer(self.config, self.name, head, body)
        reply = json.dumps(found, allow_nan=False).encode()
        sent = [kind] if kind and "withheld" not in found else []
        self._write_note({"run": str(head.get("run", "")), "question": question, "sent": sent}, len(reply))
        return pack({"ok": True}, reply)

    def _released_scores(self, reply: bytes) -> bytes:
        """Scores of a round without those that the policy holds back."""
        head, _ = unpack(reply)
        counts, smallest = counts_of(self.places.root, self.name), self.config.smallest_cell
        scores = released_round(head.get("scores", {}), counts, smallest)
        if "scalar" not in self.config.privacy.release:
            scores = without_scores(scores)
        return pack(head | ({"scores": scores} if head.get("ok") else {}), b"")

    def _note(self, opened: Opened, head: dict[str, Any], reply: bytes) -> None:
        """Note what a step has sent."""
        answered, body = unpack(reply)
        step = find_step(str(head["step"]))
        sent = sorted(set(kinds(step.answer).values())) if step and answered.get("ok") else []
        line = {
            "run": opened.one.key,
            "phase": opened.phase.name,
            "round": head.get("round"),
            "step": str(head["step"]),
        }
        self._write_note(line | {"sent": sent}, len(body))

    def _write_note(self, line: dict[str, Any], size: int) -> None:
        """One line of this hospital's own ledger, and one of its log, before the reply leaves."""
        path, sent = self.folder / RELEASED, line["sent"]
        line = {"time": datetime.now(UTC).isoformat(timespec="seconds")} | line | {"bytes": size if sent else 0}
        with room_for(path), open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        what = f"sent {', '.join(sent)} ({size:,} bytes)" if sent else "nothing was sent"
        asked = (
            f"round {line['round']}: asked for {line['step']}" if "step" in line else f"asked for {line['question']}"
        )
        log.info("%s: %s", ", ".join(filter(None, (line["run"], asked))), what)


def own_file(folder: Path, name: str) -> Path:
    """The hospital's own file of this name; nothing outside its folder, and only states and models."""
    path = PurePosixPath(name)
    inside = not path.is_absolute() and ".." not in path.parts and path.parts[:1] in (("memory",), ("models",))
    if not inside or path.suffix != ".safetensors":
        raise WireError("a question names a file that is not this hospital's state or model")
    return folder / path
