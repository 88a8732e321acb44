"""A client as a function from bytes to bytes: a request of the server in, its reply out."""

from __future__ import annotations

import logging
from typing import Any

from fdamed.core.errors import FdamedError
from fdamed.federation.client import Client, answer, check_release, find_step
from fdamed.federation.messages import WireError, decode, encode, pack, unpack
from fdamed.federation.questions import Home, Memory, answer_question, unreadable

UNEXPECTED = "unexpected"
"""The error of a reply whose text may quote patients' data: it stays in the client's log."""
log = logging.getLogger(__name__)


def handle_request(client: Client, method: str, request: bytes, home: Home | None = None) -> bytes:
    """The client as a function from bytes to bytes: always an answer, or an error.

    The text of an unexpected error may quote patients' data and stays in the client's log.
    """
    try:
        head, body = unpack(request)
        if "question" in head and home:
            memory = Memory(lambda: client.memory, lambda state: setattr(client, "memory", state))
            return pack({"ok": True} | answer_question(home, memory, str(head["question"]), head, bytes(body)), b"")
        return _answer_step(client, method, head, body)
    except FdamedError as error:
        return error_reply(error)
    except WireError as error:
        return error_reply(unreadable(client.name, error))
    except Exception:
        log.exception("a question failed at client %s", client.name)
        return pack({"ok": False, "error": UNEXPECTED}, b"")


def _answer_step(client: Client, method: str, head: dict[str, Any], body: memoryview) -> bytes:
    step, round, nth = find_step(str(head.get("step"))), head.get("round"), head.get("nth")
    if step is None or type(round) is not int or type(nth) is not int:
        raise WireError("this client does not know such a step")
    check_release(step, client.release, client.name, method)
    ask: Any = decode(step.question, body, client.model.layout.size)
    reply = encode(answer(client, step, round, nth, ask))
    return pack({"ok": True} | ({"remembered": client.remembered} if client.remembered else {}), reply)


def error_reply(error: FdamedError) -> bytes:
    """An error as the bytes of an answer."""
    return pack({"ok": False, "error": [error.what, error.where, error.fix]}, b"")
