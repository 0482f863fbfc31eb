"""A page in a headless Chromium: what it shows, what it asks for, and what its console says.

Chromium speaks its DevTools protocol over two pipes: JSON objects with a zero byte behind each.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from browser.debian import chromium

_SECONDS = 180.0
_ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
    # Otherwise it drops keys until a page is painted for the first time.
    "--allow-pre-commit-input",
)  # fmt: skip
# Key → its code, its number and the text it writes.
_KEYS = {"Tab": ("Tab", 9, ""), "Enter": ("Enter", 13, "\r"), "Escape": ("Escape", 27, ""), " ": ("Space", 32, " ")}

# What Chromium answers when a page leaves while it is asked.
_NAVIGATED = "Inspected target navigated or closed"


class _NavigatedError(Exception):
    """The page that was asked has left."""


class Page:
    """A page of a running browser.

    Attributes:
        console: what the page's console has: messages, errors of scripts, refused requests.
        requests: addresses that the page has asked for, without those that hold their content (`data:`).
    """

    def __init__(self, write: int, read: int) -> None:
        self.console: list[str] = []
        self.requests: list[str] = []
        self._write, self._read = write, read
        self._buffer = b""
        self._number = 0
        self._loaded = 0
        self._session: str | None = None
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def open(self, address: str, width: int = 1280, dark: bool = False) -> None:
        """Show an address, and wait until all of it is there.

        Args:
            address: the address.
            width: of the window, in CSS pixels.
            dark: whether the user prefers dark colours.
        """
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])
        loaded = self._loaded
        answer = self._ask("Page.navigate", url=address)
        assert not answer.get("errorText"), f"{address}: {answer['errorText']}"
        self._until(lambda: self._loaded > loaded)
        self.run("document.fonts.ready.then(() => null)")

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression, or that of the promise that it is."""
        answer = self._ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key, such as `Tab`, and wait for the page that it opens, if it opens one."""
        code, number, text = _KEYS[key]
        for kind in ("keyDown", "keyUp"):
            told = {"text": text} if text and kind == "keyDown" else {}
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, code=code, windowsVirtualKeyCode=number, **told)

    def type(self, text: str) -> None:
        """Write text where the focus is."""
        self._ask("Input.insertText", text=text)

    def wait_for(self, script: str) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + _SECONDS
        while not self._is_true(script):
            assert time.monotonic() < deadline, f"never true: {script}"
            time.sleep(0.05)

    def _is_true(self, script: str) -> bool:
        try:
            return bool(self.run(f"Boolean({script})"))
        except _NavigatedError:
            return False  # the page asked made way for the next

    def picture(self, path: Path) -> None:
        """Write the whole page as PNG, without what is empty below it."""
        width = self._ask("Page.getLayoutMetrics")["cssContentSize"]["width"]
        height = self.run("document.documentElement.getBoundingClientRect().height")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        answer = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answers: list[dict[str, Any]] = []
        number = self._number
        self._until(lambda: bool(answers), lambda got: answers.append(got) if got.get("id") == number else None)
        (answer,) = answers
        if answer.get("error", {}).get("message") == _NAVIGATED:
            raise _NavigatedError
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _until(self, is_over: Callable[[], bool], take: Callable[[dict[str, Any]], None] = lambda got: None) -> None:
        deadline = time.monotonic() + _SECONDS
        while not is_over():
            while b"\0" not in self._buffer:
                ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
                assert ready, "Chromium does not answer"
                piece = os.read(self._read, 1 << 16)
                if not piece:
                    raise EOFError
                self._buffer += piece
            message, _, self._buffer = self._buffer.partition(b"\0")
            got = json.loads(message)
            self._note(got.get("method"), got.get("params", {}))
            take(got)

    def _note(self, event: str | None, told: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded += 1
        elif event == "Runtime.consoleAPICalled":
            self.console.append(" ".join(str(item.get("value", item.get("description"))) for item in told["args"]))
        elif event == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.console.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Log.entryAdded":
            self.console.append(told["entry"]["text"])
        elif event == "Network.requestWillBeSent" and not told["request"]["url"].startswith("data:"):
            self.requests.append(told["request"]["url"])


def _pipe() -> tuple[int, int]:
    """Return a pipe whose numbers are none of those that Chromium wants."""
    ends = os.pipe()
    high = (fcntl.fcntl(ends[0], fcntl.F_DUPFD_CLOEXEC, 10), fcntl.fcntl(ends[1], fcntl.F_DUPFD_CLOEXEC, 10))
    for end in ends:
        os.close(end)
    return high


@contextmanager
def browsing() -> Iterator[Page]:
    """Yield an empty page of a browser of its own.

    Raises:
        NoChromiumError: there is no Chromium for this machine.
    """
    program = chromium()
    with (
        tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as home,
        (Path(home) / "log").open("wb") as log,
    ):
        (its_in, our_out), (our_in, its_out) = _pipe(), _pipe()
        process = subprocess.Popen(
            # Chromium wants these very numbers.
            ["bash", "-c", f'exec "$@" 3<&{its_in} 4>&{its_out}', "bash", str(program.path), *_ARGUMENTS,
             f"--user-data-dir={home}/profile", "about:blank"],
            env={**os.environ, **program.environ, "HOME": home},
            pass_fds=(its_in, its_out),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )  # fmt: skip
        os.close(its_in)
        os.close(its_out)
        try:
            yield Page(our_out, our_in)
        except EOFError:
            raise AssertionError(f"Chromium has ended: {Path(log.name).read_text(errors='replace')[-2000:]}") from None
        finally:
            os.close(our_out)  # the browser ends when nobody can ask it any more
            os.close(our_in)
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
