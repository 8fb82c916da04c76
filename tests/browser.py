"""A headless Chromium, driven over a pipe: no driver program and no library is needed.

`--remote-debugging-pipe` makes it read commands of the DevTools protocol from file descriptor 3 and
answer on 4, messages ended by a zero byte.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
needs_chromium = pytest.mark.skipif(not PROGRAM, reason="needs a Chromium on PATH")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_TIMEOUT_S = 60.0


class Browser:
    """One tab. What the page logs and asks for is kept in `messages` and `requests`."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._buffer = b""
        self._last_id = 0
        self._session: str | None = None
        self.messages: list[str] = []
        self.requests: list[str] = []

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer, keeping events on the way."""
        self._last_id += 1
        command = {"id": self._last_id, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next_message()
            if message.get("id") == self._last_id:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._keep(message)

    def _next_message(self) -> dict[str, Any]:
        until = time.monotonic() + _TIMEOUT_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(until - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            part = os.read(self._answers, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def _keep(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message["method"] == "Runtime.consoleAPICalled":
            self.messages.append(str([entry.get("value") for entry in params["args"]]))
        elif message["method"] == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.messages.append(details.get("exception", {}).get("description", details["text"]))
        elif message["method"] == "Log.entryAdded":
            self.messages.append(params["entry"]["text"])
        elif message["method"] == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, path: Path, *, width: int = 1400, height: int = 900, dark: bool = False) -> None:
        """Show a file and wait until it says that it is ready."""
        self.resize(width, height)
        self.prefer(dark=dark)
        self.messages.clear()
        self.requests.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait_until("document.documentElement?.dataset.ready === 'yes'")

    def prefer(self, *, dark: bool) -> None:
        """A screen, and a reader who wants it light or dark, and nothing to fade on the way."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme, still])

    def wait_until(self, condition: str) -> None:
        """Wait until an expression in the page is true."""
        until = time.monotonic() + _TIMEOUT_S
        while not self.run(condition):
            assert time.monotonic() < until, f"never {condition}; the page says {self.messages}"
            time.sleep(0.02)

    def resize(self, width: int, height: int, *, pixel_ratio: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=pixel_ratio,
            mobile=False,
        )

    def run(self, script: str) -> Any:
        """The value of an expression in the page, awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        problem = answer.get("exceptionDetails")
        assert problem is None, problem
        return answer["result"].get("value")

    def mouse(self, event: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=event, x=x, y=y, **more)
        self.settle()

    def key(self, key: str, *, shift: bool = False) -> None:
        for event in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=event, key=key, modifiers=8 if shift else 0)
        self.settle()

    def settle(self) -> None:
        """Wait for two frames: what was asked for is drawn."""
        frame = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        self.run(frame + ".then(() => null)")

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def barriers(self) -> dict[str, list[str]]:
        """What axe-core finds that keeps people out: elements by the rule that they break.

        All of WCAG 2.2 up to AA and of good practice, on the page as it stands, without its frames.
        """
        package = pytest.importorskip("axe_playwright_python", reason="needs axe-core's package")
        self.run((Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8") + ";0")
        found = self.run("axe.run(document, { iframes: false, resultTypes: ['violations'] })")
        return {
            rule["id"]: [node["html"][:200] for node in rule["nodes"]]
            for rule in found["violations"]
        }

    def pdf(self) -> bytes:
        printed = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(printed["data"])


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser with a profile of its own; end it and only it."""
    profile = tempfile.mkdtemp(prefix="trainwright-browser-")
    command_end, commands = os.pipe()
    answers, answer_end = os.pipe()
    # Out of the way of 3 and 4, which the copies for the child are about to take.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (command_end, answer_end)]
    quiet = os.open(os.devnull, os.O_RDWR)
    process = os.posix_spawn(
        PROGRAM,
        [PROGRAM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        {**os.environ, "HOME": profile},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, quiet, 1),
            (os.POSIX_SPAWN_DUP2, quiet, 2),
            (os.POSIX_SPAWN_DUP2, ends[0], 3),
            (os.POSIX_SPAWN_DUP2, ends[1], 4),
        ],
        setpgroup=0,
    )
    for end in (command_end, answer_end, *ends, quiet):
        os.close(end)
    try:
        browser = Browser(commands, answers)
        browser.attach()
        yield browser
    finally:
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(commands)
        os.close(answers)
        shutil.rmtree(profile, ignore_errors=True)
