"""A long message in parts, which its reader fetches one by one.

FLARE 2.9.0 holds a message several times, and formats every request for a line of its log that nobody sees. So the
parts are small, and they are replies.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from fdamed.core.files import room_for
from fdamed.federation.transport.local_socket import LONGEST

BYTES, SIZE, AT, KEY = "bytes", "size", "at", "key"
"""Of a message: its first part or the one asked for, the bytes of all, the first byte of a part, and the secret of the
two who exchange it: other hospitals do not know it."""
PART = 4 << 20


def part_of(content: bytes, at: int = 0) -> Shareable:
    """The message that has a part of the content."""
    out = make_reply(ReturnCode.OK)
    out[BYTES], out[SIZE] = content[at : at + PART], len(content)
    return out


def whole(first: Shareable, fetch: Callable[[int], Shareable | None]) -> bytes | memoryview:
    """The content of which the first part is here: of several parts, it is on disk until it is read.

    Raises ConnectionError if a part does not come, ValueError if there is no content.
    """
    piece, size = first.get(BYTES), first.get(SIZE)
    if not isinstance(piece, bytes) or size == len(piece):
        return _checked(piece, size)
    with room_for(Path(tempfile.gettempdir()) / "a message", size), tempfile.TemporaryFile() as file:
        while file.write(_checked(piece, size)) and file.tell() < size:
            found = fetch(file.tell())
            if found is None or found.get_return_code() != ReturnCode.OK:
                raise ConnectionError
            piece = found.get(BYTES)
        file.flush()
        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))


def _checked(piece: Any, size: Any) -> bytes:
    if not isinstance(piece, bytes) or not isinstance(size, int) or not 0 <= size <= LONGEST:
        raise ValueError("a message without content")
    return piece
