"""Drives headless Chromium over its debugging pipe: nothing to install beside the browser itself."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync", "--hide-scrollbars"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-extensions",
        "--disable-dev-shm-usage",
    ),
)
PATIENCE = 120.0
"""Seconds that one answer of the browser may take: machines of a test farm are slow."""
CODES = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "+": 187}
"""Keys whose number is not that of their letter."""


class Page:
    """One tab: go somewhere, look, click, type; what the page complains about is kept in `complaints`."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading, self.writing = reading, writing
        self.rest, self.last, self.session = b"", 0, ""
        self.complaints: list[str] = []
        self.events: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer."""
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == self.last:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']['message']}")
                answer: dict[str, Any] = reply["result"]
                return answer

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self.rest:
            if not select.select([self.reading], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"the browser said nothing for {PATIENCE:g} s")
            part = os.read(self.reading, 1 << 20)
            if not part:
                raise RuntimeError("the browser ended")
            self.rest += part
        raw, self.rest = self.rest.split(b"\0", 1)
        reply: dict[str, Any] = json.loads(raw)
        self._note(reply)
        return reply

    def _note(self, reply: dict[str, Any]) -> None:
        name, parameters = reply.get("method", ""), reply.get("params", {})
        self.events.append(name)
        if name == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        elif name == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(str(parameters["entry"]["text"]))
        elif name == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(parameters["args"]))

    def open(self, path: Path, width: int = 1400, height: int = 900, **media: str) -> None:
        """Load a file at this size; `media` such as prefers_color_scheme="dark"."""
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self.ask("Emulation.setEmulatedMedia", features=features)
        self.complaints.clear()
        self.events.clear()
        self.ask("Page.navigate", url=path.as_uri())
        while "Page.loadEventFired" not in self.events:
            self._next()

    def see(self, expression: str) -> Any:
        """The value of a script expression in the page."""
        reply = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            raise RuntimeError(str(reply["exceptionDetails"].get("exception", reply["exceptionDetails"])))
        return reply["result"].get("value")

    def press(self, key: str) -> None:
        """A real key press, wherever the focus is."""
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        code = CODES[key] if key in CODES else ord(key.upper())
        head = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **head)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **head)

    def click(self, selector: str) -> None:
        """A real click of the mouse in the middle of the first match."""
        where = f"document.querySelector({json.dumps(selector)})"
        box = self.see(
            f"(() => {{ {where}.scrollIntoView({{block: 'center', behavior: 'instant'}});"
            f" const b = {where}.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; }})()"
        )
        head = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
        self.ask("Input.dispatchMouseEvent", type="mousePressed", **head)
        self.ask("Input.dispatchMouseEvent", type="mouseReleased", **head)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """What is on the screen as a PNG file; `whole`: the page from top to bottom."""
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", captureBeyondViewport=whole)["data"]))

    def printed(self, path: Path) -> None:
        """The page as it prints, as a PDF file."""
        reply = self.ask("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False)
        path.write_bytes(base64.b64decode(reply["data"]))


@contextmanager
def browser() -> Iterator[Page]:
    """A browser of its own, which ends with the block."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as scratch:
        (in_read, in_write), (out_read, out_write) = os.pipe(), os.pipe()
        # Out of the way of 3 and 4, which the browser listens and speaks on.
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in (in_read, out_write)]

        def wire() -> None:
            os.dup2(theirs[0], 3)
            os.dup2(theirs[1], 4)

        command = [CHROMIUM, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={scratch}", "about:blank"]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            command, stdin=quiet, stdout=quiet, stderr=quiet, preexec_fn=wire, close_fds=False, start_new_session=True
        )
        for fd in (in_read, out_write, *theirs):
            os.close(fd)
        try:
            yield Page(out_read, in_write)
        finally:
            os.close(in_write)
            os.close(out_read)
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
