"""A stand-in for Ray's dashboard that knows one job, whose log and end a test decides: to follow a job without Ray."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from raydebug.cluster.dashboard import NO_AGENT_YET

JOB = "raydebug-000000-b3a000"
HEAD = {"node_id": "n1", "node_ip": "127.0.0.1", "state": "ALIVE", "is_head_node": True, "resources_total": {}}
_WEBSOCKET = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3


class RayDashboard:
    """Serves from its own thread until the block is left.

    Args:
        folder: where the token is written.
        body: answer every request with this text instead.
    """

    def __init__(self, folder: Path, body: str | None = None) -> None:
        self._body = body
        self._token = folder / "token"
        self._token.write_text("0" * 64)
        self._token.chmod(0o600)
        self._log = ""
        self._code: int | None = None
        self._status = "RUNNING"
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.hangs_at_end = False  # its tables, once the job has ended
        self.has_agent = True  # that takes jobs
        self.stops = 0  # requests to stop the job
        self._writers: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> RayDashboard:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._over, self._changed = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self.port = 0
        await self._listen()
        self.port = self._server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make this the cluster around a process; nothing listens where its gateway would be."""
        return {
            "RAYDEBUG_DASHBOARD": f"http://127.0.0.1:{self.port}",
            "RAYDEBUG_GATEWAY_CLIENTS": "127.0.0.1:9",
            "RAYDEBUG_TOKEN_PATH": str(self._token),
        }

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Refuse connections, and end those that are open, until the block is left."""
        self._loop.call_soon_threadsafe(self._leave)
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def _leave(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def print(self, text: str) -> None:
        """Add to the job's log."""
        self._loop.call_soon_threadsafe(lambda: self._change(_log=self._log + text))

    def end(self, code: int) -> None:
        """End the job."""
        ended = "FAILED" if code else "SUCCEEDED"
        self._loop.call_soon_threadsafe(lambda: self._change(_code=code, _status=ended))

    def _change(self, **values: Any) -> None:
        self.__dict__.update(values)
        self._changed.set()
        self._changed = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split(" ", 2)
            if self.hangs_at_end and self._status != "RUNNING" and path.startswith("/api/v0"):
                await self._over.wait()
            if path.endswith("/logs/tail"):
                await self._tail(head, writer)
            elif "/logs/stream?" in path:
                writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
                async for piece in self._pieces():
                    writer.write(piece.encode(errors="surrogateescape"))
                    await writer.drain()
            else:
                body = self._answer(method, path.partition("?")[0]).encode(errors="surrogateescape")
                refuses = path.endswith(f"{JOB}/logs") and "\udce9" in self._log  # Ray's UnicodeDecodeError
                refuses |= body == NO_AGENT_YET.encode()
                status = b"500 Internal Server Error" if refuses else b"200 OK"
                head = b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
                writer.write(head + body)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, method: str, path: str) -> str:
        if self._body is not None:
            return self._body
        if (method, path) == ("POST", "/api/jobs/"):
            if not self.has_agent:
                self.has_agent = True
                return NO_AGENT_YET
            return json.dumps({"submission_id": JOB})
        if method == "POST":
            self.stops += 1
            self._change(_code=None, _status="STOPPED")
        if path.endswith("/logs/file"):
            return self._log
        rows: list[dict[str, object]] = []
        if path == "/api/v0/nodes":
            rows = [HEAD]
        answers: dict[str, object] = {
            "/api/jobs/": [self._job()],
            f"/api/jobs/{JOB}": self._job(),
            f"/api/jobs/{JOB}/logs": {"logs": self._log},
            "/api/v0/logs": {"data": {"result": {"driver": [f"job-driver-{JOB}.log"]}}},
            "/nodes/n1": {"data": {"detail": {"mem": [0, 0, 0, 1 << 30]}}},
        }
        return json.dumps(answers.get(path, {"data": {"result": {"result": rows}}}))

    def _job(self) -> dict[str, object]:
        return {
            "submission_id": JOB,
            "job_id": "01000000",
            "status": self._status,
            "entrypoint": "cd / && exec python train.py",
            "message": "" if self._code in (None, 0) else f"Job entrypoint command failed with exit code {self._code}",
            "start_time": int(time.time() * 1000) - 1000,
            "driver_exit_code": self._code,
            "runtime_env": {"env_vars": {}},
        }

    async def _tail(self, head: str, writer: asyncio.StreamWriter) -> None:
        """Send the log as it grows, in websocket frames."""
        lines = [line.partition(": ") for line in head.splitlines()]
        key = next(value for name, _, value in lines if name.lower() == "sec-websocket-key")
        accept = base64.b64encode(hashlib.sha1((key + _WEBSOCKET).encode()).digest()).decode()
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: %s\r\n\r\n" % accept.encode()
        )
        async for text in self._pieces():
            if "\udce9" in text:  # Ray's stream ends at a byte that is not UTF-8
                return
            piece = text.encode()
            writer.write(bytes((0x81, len(piece))) + piece)
            await writer.drain()

    async def _pieces(self) -> AsyncIterator[str]:
        """Yield the log as it grows, until the job has ended; a character of U+DC80 to U+DCFF is one such byte."""
        sent = 0
        while self._status == "RUNNING" or sent < len(self._log):
            changed = self._changed
            if piece := self._log[sent : sent + 125]:
                yield piece
                sent += len(piece)
            else:
                await changed.wait()
