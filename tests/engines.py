"""Docker engines that are not well, on unix sockets of their own: the one of this machine stays as it is."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def engine_of(answer: dict[str, Any] | None, path: Path) -> Iterator[str]:
    """Be an engine on a unix socket that answers every question with one document, or (None) with nothing at all."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if answer is None:
                time.sleep(30)
                return
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Api-Version", answer["ApiVersion"])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

        def address_string(self) -> str:
            return "unix"

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    with Server(str(path), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"unix://{path}"
        server.shutdown()
