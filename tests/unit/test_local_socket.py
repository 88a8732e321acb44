"""Bytes between two processes of one user: whole, in time, and again after a broken connection."""

from __future__ import annotations

import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fdamed.core.errors import FdamedError
from fdamed.federation.transport.local_socket import answer_all, ask, socket_of


def serving(path: Path, answer: Callable[[bytes], bytes]) -> None:
    threading.Thread(target=answer_all, args=(path, answer), daemon=True).start()


def test_a_large_request_comes_back_whole(tmp_path: Path) -> None:
    serving(tmp_path / "s", lambda request: request[::-1])
    request = os.urandom(3_000_000)
    assert ask(tmp_path / "s", request, 30) == request[::-1]


def test_who_asks_waits_until_the_other_process_is_there(tmp_path: Path) -> None:
    threading.Timer(0.5, serving, (tmp_path / "s", lambda request: b"here")).start()
    assert ask(tmp_path / "s", b"?", 30) == b"here"


def test_without_an_answer_in_time_there_is_none(tmp_path: Path) -> None:
    begin = time.monotonic()
    assert ask(tmp_path / "nobody", b"?", 0.5) is None
    serving(tmp_path / "s", lambda request: time.sleep(60) or b"")
    assert ask(tmp_path / "s", b"?", 0.5) is None
    assert time.monotonic() - begin < 30


def test_a_request_that_breaks_off_does_not_stop_the_others(tmp_path: Path) -> None:
    serving(tmp_path / "s", lambda request: b"answer")
    assert ask(tmp_path / "s", b"?", 30) == b"answer"
    for start in (b"", b"\x01", struct.pack("<Q", 100) + b"half", struct.pack("<Q", 1 << 60)):
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(tmp_path / "s"))
            line.sendall(start)
    assert ask(tmp_path / "s", b"?", 30) == b"answer"


def test_a_connection_that_ends_without_a_reply_is_tried_again(tmp_path: Path) -> None:
    door = socket.socket(socket.AF_UNIX)
    door.bind(str(tmp_path / "s"))
    door.listen()

    def dies_once() -> None:
        door.accept()[0].close()
        door.close()
        answer_all(tmp_path / "s", lambda request: b"second")

    threading.Thread(target=dies_once, daemon=True).start()
    assert ask(tmp_path / "s", b"?", 30) == b"second"


def test_only_the_user_can_reach_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as short:  # the path of a socket has at most about 100 characters
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        path = socket_of(tmp_path / "a")
        serving(path, lambda request: b"")
        assert ask(path, b"?", 30) == b""
        assert path.parent.stat().st_mode & 0o077 == 0 and path.stat().st_mode & 0o077 == 0
        assert socket_of(tmp_path / "b") != path and len(str(path)) < len(short) + 60


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / f"fdamed-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(FdamedError, match="can be entered by other users"):
        socket_of(tmp_path)
