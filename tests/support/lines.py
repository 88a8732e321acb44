"""A line between two network namespaces of this machine whose delay, rate and loss a test decides.

Packets go through two TUN devices and a process of their own: the same on every Linux, also where the kernel has no
netem. Nothing reaches another network: the namespaces have no other device but loopback.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

HOST = "fdamed-server"
HERE, THERE = "10.213.77.1", "10.213.77.2"
NAMESPACES = Path("/etc/netns")
TUNSETIFF, IFF_TUN, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 0x0001, 0x1000, 0x40000000
QUEUE = 1000
"""Packets that wait at most, as in netem."""
PERFECT: dict[str, float] = {"seconds": 0.0, "bits": 0.0, "loss": 0.0}
SLOW = {"seconds": 0.05, "bits": 10e6, "loss": 0.01}
"""10 Mbit/s, 100 ms there and back, one packet of a hundred lost."""
CUT = {"seconds": 0.0, "bits": 0.0, "loss": 1.0}


def possible() -> str:
    """Why there can be no such line here; empty: there can."""
    if os.name != "posix" or os.getuid() != 0:
        return "namespaces need root"
    if not shutil.which("ip") or not Path("/dev/net/tun").exists():
        return "there is no iproute2 or no /dev/net/tun"
    name = f"fdamed{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return "" if made else "namespaces are not allowed here"


class Line:
    """Two namespaces, `here` (the server's) and `there`, and the process between them."""

    def __init__(self) -> None:
        self.here, self.there = (f"fdamed{os.getpid()}{side}" for side in "ab")
        self._made_folder = not NAMESPACES.exists()
        for name in (self.here, self.there):
            subprocess.run(["ip", "netns", "add", name], check=True)
            hosts = NAMESPACES / name / "hosts"
            hosts.parent.mkdir(parents=True, exist_ok=True)
            hosts.write_text(f"127.0.0.1 localhost\n{HERE} {HOST}\n")
        command = [sys.executable, "-m", "tests.support.lines", self.here, self.there]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout and self._process.stdout.readline() == b"ready\n"
        for name, own, other in ((self.here, HERE, THERE), (self.there, THERE, HERE)):
            inside = ["ip", "-n", name]
            for words in (
                f"addr add {own} peer {other} dev line",
                "link set line mtu 1500 up",
                "link set lo up",
            ):
                subprocess.run([*inside, *words.split()], check=True)

    def into(self, name: str) -> list[str]:
        """The beginning of a command that runs in a namespace."""
        return ["ip", "netns", "exec", name]

    def set(self, quality: dict[str, float]) -> None:
        """Change the line from now on."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(quality).encode() + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for name in (self.here, self.there):
            subprocess.run(["ip", "netns", "del", name], check=False)
            shutil.rmtree(NAMESPACES / name, ignore_errors=True)
        if self._made_folder:
            with suppress(OSError):
                NAMESPACES.rmdir()


class Direction:
    """Packets of one direction on their way."""

    def __init__(self, out: int) -> None:
        self.out, self._free, self._waiting = out, 0.0, deque[tuple[float, bytes]]()
        self._draw = random.Random(7)

    def take(self, packet: bytes, quality: dict[str, float], now: float) -> None:
        if len(self._waiting) >= QUEUE or self._draw.random() < quality["loss"]:
            return
        self._free = max(now, self._free) + (8 * len(packet) / quality["bits"] if quality["bits"] else 0.0)
        self._waiting.append((self._free + quality["seconds"], packet))

    def release(self, now: float) -> float:
        """Send what is due; the seconds until the next packet is."""
        while self._waiting and self._waiting[0][0] <= now:
            with suppress(OSError):  # the device is not up yet
                os.write(self.out, self._waiting.popleft()[1])
        return max(0.0, self._waiting[0][0] - now) if self._waiting else 1.0


def device(namespace: str) -> int:
    """A TUN device called `line` in this namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as place:
        if libc.setns(place.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    found = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(found, TUNSETIFF, struct.pack("16sH", b"line", IFF_TUN | IFF_NO_PI))
    return found


def forward(here: str, there: str) -> None:
    """Pass packets on until standard input is closed, whose lines set the quality."""
    ends: list[int] = [device(here), device(there)]
    ways: dict[int, Any] = {ends[0]: Direction(ends[1]), ends[1]: Direction(ends[0])}
    print("ready", flush=True)
    quality, pause = PERFECT, 1.0
    while True:
        ready, _, _ = select.select([*ends, 0], [], [], pause)
        now = time.monotonic()
        for end in ready:
            if end == 0:
                lines = os.read(0, 65536)  # unbuffered: a second line must not wait where select does not see it
                if not lines:
                    return
                quality = json.loads(lines.splitlines()[-1])
            else:
                ways[end].take(os.read(end, 65536), quality, now)
        pause = min(way.release(now) for way in ways.values())


if __name__ == "__main__":
    forward(*sys.argv[1:])
