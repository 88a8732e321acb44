"""Bytes between two processes of one user on this machine, over a Unix socket: an engine's client and the hospital's
own process, which holds the data.

The asking side waits until the answering process is there and sends its request again after a broken connection: a
hospital answers the same request twice with the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fdamed.core.errors import FdamedError

PAUSE = 0.2
"""Seconds between two attempts to connect."""
LONGEST = 1 << 33
"""Bytes of a message, at most."""


def socket_of(folder: Path) -> Path:
    """The socket of a hospital's folder: paths of sockets are short, so it is in a private folder of its user."""
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"fdamed-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    if base.is_symlink() or base.stat().st_uid != os.getuid() or base.stat().st_mode & 0o077:
        fix = f"Remove it, or `chmod 700 {base}`."
        raise FdamedError("the folder for sockets can be entered by other users", str(base), fix)
    return base / f"{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:24]}.sock"


def ask(path: Path, request: bytes | memoryview, seconds: float) -> bytes | None:
    """The reply of the process behind a socket; None: there was none in time."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
                line.settimeout(left)
                line.connect(str(path))
                _send(line, request)
                return _receive(line)
        except TimeoutError:
            return None
        except (ConnectionError, FileNotFoundError, EOFError):
            time.sleep(min(PAUSE, left))
    return None


def answer_all(path: Path, answer: Callable[[bytes], bytes]) -> None:
    """Answer one request after the other, for ever; only processes of the same user are heard."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(str(path))
        path.chmod(0o600)
        door.listen(8)
        while True:
            line, _ = door.accept()
            with line:
                if not _same_user(line):
                    continue
                try:
                    request = _receive(line)
                    _send(line, answer(request))
                except (ConnectionError, EOFError):  # who asked is gone, and will ask again
                    continue


def _same_user(line: socket.socket) -> bool:
    if not hasattr(socket, "SO_PEERCRED"):  # the permissions of the folder have to do
        return True
    _, user, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(user == os.getuid())


def _send(line: socket.socket, content: bytes | memoryview) -> None:
    line.sendall(struct.pack("<Q", len(content)))
    line.sendall(content)


def _receive(line: socket.socket) -> bytes:
    (size,) = struct.unpack("<Q", _exactly(line, 8))
    if size > LONGEST:
        raise EOFError
    return bytes(_exactly(line, size))


def _exactly(line: socket.socket, size: int) -> bytearray:
    out = bytearray(size)
    view, at = memoryview(out), 0
    while at < size:
        got = line.recv_into(view[at:])
        if not got:
            raise EOFError
        at += got
    return out
