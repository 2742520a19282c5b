"""Docker engines that are not well, on unix sockets of their own: the one of this machine stays as it is."""

from __future__ import annotations

import contextlib
import json
import os
import socket
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


class GoingEngine:
    """This machine's engine by a socket of its own, which goes away and comes back while the engine itself stays.

    Args:
        path: where the socket is made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        real = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        self._real = real.removeprefix("unix://")
        self._listener: socket.socket
        self._open: list[socket.socket] = []

    @property
    def where(self) -> str:
        """Its address, as DOCKER_HOST."""
        return f"unix://{self._path}"

    def come(self) -> None:
        """Answer from now on."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def go(self) -> None:
        """End every conversation, and take no more."""
        self._path.unlink(missing_ok=True)
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in it
            one.close()
        self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            engine = socket.socket(socket.AF_UNIX)
            engine.connect(self._real)
            self._open += [client, engine]
            for source, target in ((client, engine), (engine, client)):
                threading.Thread(target=_pump, args=(source, target), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
