"""`raydebug trace --open`: Perfetto's viewer in a real Chromium, from this machine alone."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from chromium import Tab
from raydebug.runs.folder import read_run
from raydebug.runs.timeline import read_recorded
from raydebug.trace.viewer import POLICY, Viewer, find_viewer
from raydebug.trace.write import write_trace
from trace_files import recorded_run

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def viewer(tmp_path: Path) -> Iterator[Viewer]:
    """The installed viewer with the trace of a recorded run."""
    folder = find_viewer()
    if folder is None:
        pytest.skip("the extra raydebug[viewer] is not installed here")
    trace = write_trace(read_recorded(read_run(recorded_run(tmp_path / "run")))).path
    with Viewer(folder, trace) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_the_trace_opens_without_a_network(viewer: Viewer, show: Callable[..., Tab]) -> None:
    """The viewer opens the trace: its title has the file's name, and nothing but loopback has answered."""
    tab = show(viewer.url)
    deadline = time.monotonic() + 120
    while "trace.json" not in tab.ask("document.title") and time.monotonic() < deadline:
        time.sleep(0.5)
    assert "trace.json" in tab.ask("document.title")
    answered = {urlsplit(one["response"]["url"]).hostname for one in tab.events("Network.responseReceived")}
    assert answered - {None, ""} == {"127.0.0.1"}


def test_only_this_machine_is_served(viewer: Viewer) -> None:
    """Each answer has the policy; a name that leads here (DNS rebinding) gets nothing, nor does a path outside."""
    where = f"http://127.0.0.1:{viewer.server_port}"

    def ask(path: str, **headers: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(urllib.request.Request(where + path, headers=headers), timeout=20) as answer:
                return answer.status, answer.headers["Content-Security-Policy"]
        except urllib.error.HTTPError as refused:
            return refused.code, refused.headers["Content-Security-Policy"]

    assert ask("/") == (200, POLICY)
    assert ask("/trace.json.gz") == (200, POLICY)
    assert ask("/", Host="evil.example")[0] == 421
    assert ask("/../../../../etc/passwd")[0] == 404
    assert viewer.server_address[0] == "127.0.0.1"
