"""A stand-in for the gateway: a real debugpy process dials in, DAP clients attach by the gateway's contract."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from raydebug.dap import wire
from raydebug.dap.session import DapSession, no_delay
from raydebug.dap.wire import Message

TOKEN = "right-token"  # noqa: S105 - of the stand-in
LIMIT_S = 20.0
HELLO = {"pathFormat": "path", "linesStartAt1": True, "columnsStartAt1": True, "adapterID": "raydebug"}

# What the worker hook does at a pause, in the least code; facts: debugpy 1.8.22 server/api.py `_settrace`.
PREAMBLE = """
import socket, sys, debugpy
from debugpy.server.api import _settrace, ensure_logging
def _dial():
    debugpy.configure(subProcess=False)
    ensure_logging()
    _settrace(host="127.0.0.1", port=int(sys.argv[1]), wait_for_ready_to_run=False, block_until_connected=True,
              access_token="T", client_access_token="me", suspend=False, patch_multiprocessing=False)
    from _pydevd_bundle.pydevd_comm import get_global_debugger
    get_global_debugger().writer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    debugpy.wait_for_client()
def pause():
    _dial()
    debugpy.breakpoint()
def post_mortem(run):
    try:
        run()
    except Exception as error:
        _dial()
        import pydevd, threading
        py_db = pydevd.get_global_debugger()
        thread = threading.current_thread()
        from _pydevd_bundle.pydevd_additional_thread_info import set_additional_thread_info
        info = set_additional_thread_info(thread)
        info.is_tracing += 1
        try:
            py_db.stop_on_unhandled_exception(py_db, thread, info, sys.exc_info())
        finally:
            info.is_tracing -= 1
"""


class StandIn:
    """Start one worker process that dials us; serve its pause to DAP clients on `port`."""

    def __init__(self, folder: Path, body: str, *, record: Message | None = None) -> None:
        (folder / "standin_hook.py").write_text(PREAMBLE)
        self.job = folder / "job.py"
        self.job.write_text("from standin_hook import pause, post_mortem\n" + body)
        self._record = record or {}
        self.log = folder / "job.log"
        self.port = 0
        self.stopped: Message | None = None
        self.ended = False
        self.busy = False
        self._client: asyncio.StreamWriter | None = None
        self._ready = threading.Event()
        self._paused = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(LIMIT_S)

    def wait_paused(self) -> None:
        assert self._paused.wait(LIMIT_S), self.log.read_text()

    @property
    def pause(self) -> Message:
        return {"id": "p1", "kind": "breakpoint", "file": str(self.job), "line": 0, "function": "", "rank": 0,
                "thread": "MainThread", "exception": None, "pid": self.process.pid, "ip": "127.0.0.1",
                "node_id": "a1b2c3d4e5f6", "worker_id": "w1", "job_id": "01000000", "task": "train_step",
                "actor": "Trainer", "since_s": 3.2, "state": "waiting", **self._record}  # fmt: skip

    def close(self) -> None:
        """End the process and the server."""
        self.process.kill()
        self.process.wait()
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop)
        self._thread.join(LIMIT_S)
        self._loop.close()

    async def _stop(self) -> None:
        if hasattr(self, "upstream"):
            await self.upstream.close()
        for server in self._servers:
            server.close()
        mine = asyncio.all_tasks() - {asyncio.current_task()}
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)
        self._loop.stop()

    def _run(self) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()

    async def _start(self) -> None:
        dial = await asyncio.start_server(self._dialled, "127.0.0.1", 0)
        doors = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._servers = [dial, doors]
        self.port = doors.sockets[0].getsockname()[1]
        self._arrived = asyncio.Event()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 - the test's own program
                [sys.executable, "-Xfrozen_modules=off", str(self.job), str(dial.sockets[0].getsockname()[1])],
                stdout=log, stderr=log, cwd=self.job.parent, env={**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"},
            )  # fmt: skip

    async def _dialled(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.upstream = DapSession(reader, writer, on_event=self._on_event, on_end=self._on_end)
        await self.upstream.request("pydevdAuthorize", {"debugServerAccessToken": "T"})
        await self.upstream.request("initialize", HELLO)
        await self.upstream.request("attach", {"justMyCode": False, "showReturnValue": True})
        await self.upstream.request("setExceptionBreakpoints", {"filters": ["uncaught"]})
        await self.upstream.request("configurationDone")

    def _on_event(self, message: Message) -> None:
        if message["event"] == "stopped":
            self.stopped = message["body"]
            self._arrived.set()
            self._paused.set()
        if message["event"] == "continued":
            self._arrived.clear()
        self._tell(message["event"], message.get("body"))

    def _on_end(self) -> None:
        self.ended = True
        self._tell("terminated", {})

    def _tell(self, name: str, body: Message | None) -> None:
        if self._client is not None:
            self._client.write(wire.encode(wire.event(0, name, body)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        no_delay(writer)
        decoder = wire.Decoder()
        while data := await reader.read(65536):
            for message in decoder.feed(data):
                asyncio.ensure_future(self._answer(writer, message))  # noqa: RUF006 - lives as long as the loop
                await asyncio.sleep(0)
        if self._client is writer:
            self._client = None

    async def _answer(self, writer: asyncio.StreamWriter, message: Message) -> None:
        command, arguments = message["command"], message.get("arguments") or {}

        def reply(body: Message | None = None) -> None:
            writer.write(wire.encode(wire.response(0, message, body)))

        def refuse(code: str, text: str, fix: str) -> None:
            error = {"error": {"id": 1, "format": text, "code": code, "fix": fix}}
            writer.write(wire.encode(wire.refusal(0, message, text, error)))

        if command == "initialize":
            reply({"supportsConfigurationDoneRequest": True})
        elif command == "attach":
            await self._attach(writer, arguments, reply, refuse)
        elif command == "configurationDone":
            reply()
            writer.write(wire.encode(wire.event(0, "stopped", self.stopped)))
        elif command == "disconnect":
            self._client = None
            reply()
        else:
            with contextlib.suppress(Exception):
                answer = await self.upstream.send(command, arguments)
                writer.write(wire.encode({**answer, "seq": 0, "request_seq": message["seq"]}))

    async def _attach(self, writer: asyncio.StreamWriter, arguments: Message, reply: Any, refuse: Any) -> None:
        target = arguments.get("target")
        if arguments.get("token") != TOKEN:
            refuse("auth.wrong-token", "the token is not this cluster's", "name it")
        elif target == "next":
            await self._arrived.wait()
        elif target == "p0":
            refuse("pause.ended", "pause p0 has ended: its process 99 exited", "raydebug paused")
        elif target != "p1":
            refuse("pause.unknown", f"there is no pause '{target}'", "raydebug paused")
        if arguments.get("token") != TOKEN or target not in ("p1", "next"):
            return
        if self.busy and not arguments.get("steal"):
            refuse("pause.busy", "pause p1 is attached by another client", "raydebug attach p1 --steal")
            return
        self._client = writer
        reply({"pause": self.pause})
        writer.write(wire.encode(wire.event(0, "initialized")))
