"""A real, headless Chromium that is driven through a pipe: no port is opened, and no driver package is needed.

Source: with --remote-debugging-pipe it reads file descriptor 3 and writes 4, each message ends with a NUL byte
(Chromium's content/browser/devtools/devtools_pipe_handler.cc); https://chromedevtools.github.io/devtools-protocol/ has
the messages.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
AXE_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
ANSWER_S = 60.0  # a browser that says nothing for so long hangs
OPTIONS = (
    "--headless", "--remote-debugging-pipe", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--mute-audio",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no name leads anywhere, whatever a page asks for
)  # fmt: skip


def find_chromium() -> str | None:
    """Return the program: CHROMIUM, or the first of its usual names on the PATH."""
    named = os.environ.get("CHROMIUM")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """A browser with a profile of its own, closed with the `with` statement."""

    def __init__(self, program: str, folder: Path) -> None:
        to_browser, self._send = os.pipe()
        self._receive, from_browser = os.pipe()
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's own sandbox refuses root
        argv = [program, *OPTIONS, *sandbox, f"--user-data-dir={folder / 'profile'}"]
        wired = ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", *argv]  # dash knows fds to 9
        self._log = (folder / "chromium.log").open("wb")
        self._process = subprocess.Popen(
            wired, pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self.call("Browser.close")
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._send)
        os.close(self._receive)
        self._log.close()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Return the answer to one message; events that come before it are kept."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self._send, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while True:
            answer = self._next(deadline, method)
            if answer.get("id") != number:
                self.events.append(answer)
            elif "error" in answer:
                raise AssertionError(f"{method}: {answer['error']}")
            else:
                return dict(answer["result"])

    def wait_for(self, event: str, session: str) -> dict[str, Any]:
        """Return an event of a session; one that came before counts."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            for index, one in enumerate(self.events):
                if one.get("method") == event and one.get("sessionId") == session:
                    return dict(self.events.pop(index)["params"])
            self.events.append(self._next(deadline, event))

    def _next(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"Chromium did not answer {what} within {ANSWER_S:.0f} s")
            piece = os.read(self._receive, 1 << 20)
            if not piece:
                raise ConnectionError(f"Chromium ended; its words are in {self._log.name}")
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def tab(
        self, *, width: int = 1280, height: int = 900, dark: bool = False, program: bool = True, media: str = ""
    ) -> Tab:
        """Open a tab that looks like a screen.

        Args:
            width: of it, in CSS pixels; below 500 it is a phone, with a touch screen.
            height: of it.
            dark: whether its user prefers dark colours.
            program: whether pages may run JavaScript.
            media: `print`, to see what paper shows.
        """
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session, target)
        for domain in ("Page", "Runtime", "Network", "Log"):
            tab.call(f"{domain}.enable")
        phone = width < 500
        screen = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        tab.call("Emulation.setDeviceMetricsOverride", **screen)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        tab.call("Emulation.setEmulatedMedia", media=media, features=features)
        tab.call("Emulation.setScriptExecutionDisabled", value=not program)
        return tab


class Tab:
    """One page of the browser."""

    def __init__(self, browser: Chromium, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to one message for this page."""
        return self._browser.call(method, self._session, **parameters)

    def open(self, page: Path | str) -> float:
        """Open a file or an address and return how many seconds passed until it was loaded and drawn."""
        begun = time.monotonic()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        self.wait_for_load()
        self.call("Page.captureScreenshot", format="jpeg", quality=1)  # answered only when a frame has been drawn
        return time.monotonic() - begun

    def wait_for_load(self) -> None:
        """Wait until what it navigates to is loaded."""
        self._browser.wait_for("Page.loadEventFired", self._session)

    def close(self) -> None:
        """Close it."""
        self._browser.call("Target.closeTarget", targetId=self._target)

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def events(self, method: str) -> list[dict[str, Any]]:
        """Return the messages and errors of the page so far."""
        self.call("Runtime.evaluate", expression="0")
        return [
            e["params"] for e in self._browser.events if e.get("sessionId") == self._session and e["method"] == method
        ]

    def violations(self, axe: str) -> list[Any]:
        """Return what axe-core finds (WCAG 2.2 A and AA, best practice): rules, each with its first elements.

        Args:
            axe: its program.
        """
        self.ask(axe + "; 0")
        self.ask(f"axe.run({{runOnly: {AXE_RULES}}}).then(done => {{ window.done = done }})")
        assert self.ask("done.passes.map(rule => rule.id)").count("color-contrast") == 1
        found: list[Any] = self.ask(
            "done.violations.map(v => [v.id, v.nodes.slice(0, 3).map(n => [n.html.slice(0, 160), n.failureSummary])])"
        )
        return found

    def picture(self, path: Path, *, whole: bool = True) -> Path:
        """Write a screenshot, of the whole page or of the window."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path
