"""At the lead of a study over a network: what the report needs, asked of the hospitals and written where a study on one
machine has its files. What a hospital holds back becomes a line of the report."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from fdamed.config.study import Config
from fdamed.core.disclosure import ABOUT, RELEASED, STEP
from fdamed.core.errors import FdamedError
from fdamed.core.files import digest, read_json, write_json
from fdamed.evaluation.audit import EMPTY
from fdamed.evaluation.intervals import LEVEL
from fdamed.evaluation.metrics import TWO
from fdamed.federation.absences import DroppedOut
from fdamed.federation.messages import WireError, pack
from fdamed.federation.transport.wire import Wire, reply_body
from fdamed.pipeline.hospitals.report_questions import INITIAL, LEAKS
from fdamed.pipeline.hospitals.site import study_digest
from fdamed.pipeline.paths import Places
from fdamed.pipeline.selection import StudyRun, all_runs

WITHHELD = "withheld.json"
"""Section of the report -> lines on what is missing in it, and why."""
WITHIN = "patients and images were compared within each hospital, not between hospitals"
Json = dict[str, Any]
log = logging.getLogger(__name__)


def collect(config: Config, wire: Wire) -> None:
    """Ask for everything that the report shows, and write it; the trained runs must be there."""
    root, clients, targets = Places.of(config).root, list(config.split.clients), list(config.split.targets)
    asking, withheld = Asking(config, wire), dict[str, list[str]]()
    for seed in config.seeds:
        asking.send_model(
            clients if config.audit.membership else targets, f"{INITIAL}/{seed}", Places.of(config).init(seed)
        )
    for one in all_runs(config):
        if not one.classical:
            private = (
                one.method.keeps or not config.audit.membership
            )  # models that stay with each client are not attacked
            asking.send_model([one.target] if private else clients, one.key, one.folder, _title(one))
            write_json(one.scores(one.target), asking.score(one))
            log.info("%s: scored by %s", one.key, one.target)
    withheld["cohort"] = _write_cohort(config, asking.needed("cohort", clients))
    analyses = {
        "audit": ("comparison", targets),
        "attributes": ("attribute_inference", targets if config.audit.attributes else []),
        "membership": ("membership_inference", clients if config.audit.membership else []),
    }
    for name, (section, asked) in analyses.items():
        found = asking.optional(name, asked)
        for client, content in found.items():
            write_json(root / name / f"{client}.json", _checked(name, client, content))
        withheld[section] = [str(content["withheld"]) for content in found.values() if "withheld" in content]
    write_json(root / WITHHELD, {section: lines for section, lines in withheld.items() if lines})


def _title(one: StudyRun) -> str:
    return str(read_json(one.folder / "run.json")["title"])


class Asking:
    """Questions of the report to hospitals; answers are JSON objects."""

    def __init__(self, config: Config, wire: Wire) -> None:
        self._wire, self._study = wire, study_digest(config)

    def optional(self, question: str, clients: Iterable[str], **head: Any) -> dict[str, Json]:
        """Client -> its answer; of one that gives none, `withheld` with the reason."""
        return self._ask(question, clients, b"", head)

    def needed(self, question: str, clients: Iterable[str], body: bytes = b"", **head: Any) -> dict[str, Json]:
        """Client -> its answer; raises if one gives none."""
        found = self._ask(question, clients, body, head)
        for client, content in found.items():
            if "withheld" in content:
                fix = "See its own log, and start `fdamed lead` again: trained runs are kept."
                raise FdamedError(f"no report: {content['withheld']}", f"hospital {client}", fix)
        return found

    def send_model(self, clients: Iterable[str], run: str, folder: Any, title: str = "") -> None:
        self.needed("model", clients, (folder / "theta.safetensors").read_bytes(), run=run, title=title)

    def score(self, one: StudyRun) -> Json:
        """The scores that the target lets out, with what the lead knows of the run in the place of what it says."""
        found = self.needed("score", [one.target], run=one.key)[one.target]
        about: Json = {"title": _title(one), "method": one.spec.method, "client": one.target, "split": "test"}
        about |= {"study": one.config.study, "run": one.name, "target": one.target, "seed": one.seed}
        kept = {name: value for name, value in found.items() if name in (*TWO, STEP, "why", "bootstrap")}
        if not _numbers(kept, ("why", "bootstrap")) or not isinstance(kept.get("why", {}), dict):
            raise FdamedError("its scores cannot be read", f"hospital {one.target}", "Use the same version of fdamed.")
        return {key: about[key] for key in ABOUT} | kept

    def _ask(self, question: str, clients: Iterable[str], body: bytes, head: Mapping[str, Any]) -> dict[str, Json]:
        request = pack({"study": self._study, "question": question} | dict(head), body)
        replies, out = self._wire.exchange(dict.fromkeys(clients, request)), {}
        for client, reply in sorted(replies.items()):
            try:
                if isinstance(reply, DroppedOut):
                    raise reply
                content = json.loads(bytes(reply_body(client, reply)), parse_constant=_no_number)
                out[client] = content if isinstance(content, dict) else {"withheld": f"{client} sent no JSON object"}
            except (DroppedOut, WireError, FdamedError, ValueError) as error:
                why = error.what if isinstance(error, FdamedError) else str(error)
                log.warning("no answer of %s to the question %s: %s", client, question, why)
                out[client] = {"withheld": f"{client} gave no answer: {why}"}
        return out


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _numbers(content: Mapping[str, Any], besides: Iterable[str]) -> bool:
    return all(v is None or type(v) in (int, float) for k, v in content.items() if k not in besides)


def _checked(name: str, client: str, content: Json) -> Json:
    """The content of a file, with its own names; one in which nothing can be shown if it was withheld."""
    shapes: dict[str, Json] = {
        "audit": {"target": client, "reference": "", "runs": {}, "level": LEVEL} | EMPTY,
        "attributes": {"target": client, "level": LEVEL, "images": None, "attributes": {}},
        "membership": {"client": client, "level": LEVEL, "gate": None, "untrained": None, "targets": {}},
    }
    empty, owner = shapes[name], "client" if name == "membership" else "target"
    if "withheld" in content:
        return empty | {"suppressed": str(content["withheld"])}
    if wrong := [key for key, value in empty.items() if key not in content or _other(content[key], value)]:
        what = f"its {name} cannot be read ({', '.join(wrong)})"
        raise FdamedError(what, f"hospital {client}", "Use the same version of fdamed.")
    return content | {owner: client}


def _other(found: Any, wanted: Any) -> bool:
    """Whether a value has another type than it should have."""
    return isinstance(wanted, dict | list | str) and not isinstance(found, type(wanted))


def _write_cohort(config: Config, told: Mapping[str, Json]) -> list[str]:
    """Write counts, leakage and ingest of all hospitals; lines on what is missing."""
    places, leaks = Places.of(config), dict[str, Any]()
    for client, content in told.items():
        write_json(places.client(client) / "counts.json", content["counts"] | {RELEASED: True})
    for key in LEAKS:
        found = {client: content["leakage"].get(key) for client, content in told.items()}
        if all(isinstance(n, int) for n in found.values()):
            leaks[key] = sum(found.values())
        elif None not in found.values():
            leaks[key] = ", ".join(f"{n} at {client}" for client, n in found.items() if n)
    rejected: dict[str, int] = {}
    for content in told.values():
        for reason, n in content["rejected"].items():
            rejected[str(reason)] = rejected.get(str(reason), 0) + int(n)
    ingest = {"hash": digest({client: content["ingest"] for client, content in told.items()})}
    write_json(places.clients / "leakage.json", leaks)
    write_json(places.clients / "ingest.json", ingest | {"rejected": rejected})
    write_json(places.root / "leakage.json", {"rule": config.split.rule})  # type: ignore[union-attr]
    write_json(places.root / "ingest.json", ingest)
    held = [client for client, content in told.items() if content["held_back"]]
    return [
        WITHIN,
        *([f"{', '.join(held)} hold{'s' * (len(held) == 1)} back small counts of rejected images"] if held else []),
    ]
