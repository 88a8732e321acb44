"""Long messages in parts: what the reader of one gets if a part is missing, empty or no bytes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="the extra `network` is not installed: make test-network")
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fdamed.core.files import write_json
from fdamed.federation.transport.flare.forwarder import SETTINGS, TOPIC, Forwarder
from fdamed.federation.transport.flare.parts import AT, BYTES, KEY, PART, SIZE, part_of, whole
from fdamed.federation.transport.flare.wire import Messages
from fdamed.federation.transport.local_socket import answer_all, socket_of

pytestmark = pytest.mark.network
LONG = bytes(range(256)) * (PART // 100)


class Engine:
    """FLARE's engines at the server and at one hospital, without a line between them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.forwarder, self.asked = folder, Forwarder(), list[Shareable]()

    def register_aux_message_handler(self, topic: str, handler: Callable[..., Shareable]) -> None:
        self.part = handler

    def send_aux_request(self, targets: Any, topic: str, request: Shareable, *rest: Any) -> dict[str, Shareable]:
        self.asked.append(request)
        return {"other": (self.forwarder.forward if targets else self.part)(topic, request, self)}

    def new_context(self) -> AbstractContextManager[None]:
        return nullcontext()

    def get_engine(self) -> Engine:
        return self

    get_workspace = get_engine

    def get_file_path_in_site_config(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """Of a hospital that answers with what it is asked."""
    write_json(tmp_path / SETTINGS, {"socket": str(socket_of(tmp_path))})
    Thread(target=answer_all, args=(socket_of(tmp_path), bytes), daemon=True).start()
    return Engine(tmp_path)


@pytest.mark.parametrize("content", [b"brief", LONG])
def test_a_question_and_its_reply_travel_in_parts(content: bytes, engine: Engine) -> None:
    wire = Messages(engine, 10.0, Signal())
    assert wire.exchange({"other": content}) == {"other": content}
    assert len(engine.asked) == 1 + 2 * (-(-len(content) // PART) - 1)


def test_nobody_gets_a_part_without_the_secret_of_the_question(engine: Engine) -> None:
    Messages(engine, 10.0, Signal()).exchange({"other": LONG})
    stranger = Shareable({KEY: "another", AT: 0})
    assert engine.part(TOPIC, stranger, engine).get_return_code() == ReturnCode.BAD_REQUEST_DATA
    reply = engine.forwarder.forward(TOPIC, stranger, engine)
    assert reply.get_return_code() == ReturnCode.BAD_REQUEST_DATA and BYTES not in reply


def message(**content: Any) -> Shareable:
    out = make_reply(ReturnCode.OK)
    out.update(content)
    return out


@pytest.mark.parametrize("content", [b"", b"brief", LONG[:PART], LONG])
def test_a_message_in_parts_is_whole_again(content: bytes) -> None:
    asked: list[int] = []

    def fetch(at: int) -> Shareable:
        asked.append(at)
        return part_of(content, at)

    assert whole(part_of(content), fetch) == content
    assert asked == list(range(PART, len(content), PART))


@pytest.mark.parametrize("lost", [None, make_reply(ReturnCode.TIMEOUT)])
def test_a_part_that_does_not_come_is_a_broken_connection(lost: Shareable | None) -> None:
    with pytest.raises(ConnectionError):
        whole(part_of(LONG), lambda at: lost)


@pytest.mark.parametrize("piece", [b"", "text", None])
def test_a_part_without_content_is_no_message(piece: Any) -> None:
    with pytest.raises(ValueError):
        whole(part_of(LONG), lambda at: message(**{BYTES: piece, SIZE: len(LONG)}))


@pytest.mark.parametrize("size", [None, "5", -1])
def test_a_message_whose_size_is_no_number_is_none(size: Any) -> None:
    with pytest.raises(ValueError):
        whole(message(**{BYTES: b"brief", SIZE: size}), lambda at: None)
