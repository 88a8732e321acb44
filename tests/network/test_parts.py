"""Long messages in parts: what the reader of one gets if a part is missing, empty or no bytes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("nvflare", reason="the extra `network` is not installed: make test-network")
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from fdamed.federation.transport.flare.parts import BYTES, PART, SIZE, part_of, whole

pytestmark = pytest.mark.network
LONG = bytes(range(256)) * (PART // 100)


def message(**content: Any) -> Shareable:
    out = make_reply(ReturnCode.OK)
    out.update(content)
    return out


@pytest.mark.parametrize("content", [b"", b"short", LONG[:PART], LONG])
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
        whole(message(**{BYTES: b"short", SIZE: size}), lambda at: None)
