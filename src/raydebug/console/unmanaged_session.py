"""A debug session with Ray's own listener (debugpy's adapter) in a worker of a cluster that has no gateway.

It differs from a session with a gateway: it needs no token, and a client that disconnects resumes the thread. A connect
without `initialize` breaks the worker's debugger for good (debugpy 1.8.22 common/sockets.py; seen by running it), so
`initialize` follows each connect, even when Ctrl-C comes in between.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import NamedTuple

from raydebug.console.session import DebugSession, Output
from raydebug.dap import ConnectionLost, DapSession, RequestFailed
from raydebug.errors import Exit, RaydebugError, UsageError
from raydebug.protocol.listings import ListedPause
from raydebug.protocol.wire import Message

INITIALIZED_TIMEOUT_S = 15.0
POLL_PERIOD_S = 1.0
ATTACH = {
    "justMyCode": False,  # true hides every frame below Ray's
    "showReturnValue": True,
    "steppingResumesAllThreads": False,
}
# Without it each request takes 44 ms: Nagle's algorithm in pydevd's socket against the adapter's delayed ACK.
_NO_DELAY = "__import__('pydevd').get_global_debugger().writer.sock.setsockopt(6, 1, 1)"


class UnmanagedCluster(NamedTuple):
    """A cluster without a gateway: its pauses are listed by Ray and attached one by one."""

    fetch: Callable[[], list[ListedPause]]
    """Return the cluster's pauses."""

    async def open(self, target: str, *, steal: bool, on_output: Callable[[Output], None]) -> DebugSession:
        """Attach the pause with this id, or the next one.

        Raises:
            RaydebugError: no such pause; it cannot be reached; another debugger holds it.
        """
        if steal:
            raise UsageError(
                "a cluster without a gateway has nothing to steal",
                cause="Ray's own listener serves one debugger at a time and does not know which",
                fix="detach the other debugger",
            )
        while True:
            pauses = await asyncio.to_thread(self.fetch)
            found = [pause for pause in pauses if target in ("next", pause["id"])]
            if found:
                return await UnmanagedSession.attach_worker(found[0], on_output=on_output)
            if target != "next":
                raise RaydebugError(
                    f"there is no pause '{target[:40]}'",
                    cause=f"Ray's worker table has {', '.join(p['id'] for p in pauses[:8]) or 'no paused worker'}",
                    fix="list them with `raydebug paused`; what a debugger holds is not in that table",
                    code="pause.unknown",
                )
            await asyncio.sleep(POLL_PERIOD_S)


class UnmanagedSession(DebugSession):
    """An attached worker of a cluster without a gateway. Make one with `attach_worker`."""

    stays_paused = False
    # debugpy's adapter ends, and with it the session of another debugger, when it cannot send the response to a
    # `disconnect` (1.8.22 adapter/clients.py disconnect_request; seen by running it).
    _leave_timeout_s = 30.0

    def __init__(self, on_output: Callable[[Output], None]) -> None:
        super().__init__(on_output)
        self._initialized = asyncio.Event()
        self._children: set[asyncio.Task[None]] = set()
        self._listens_at: tuple[str, int] = ("", 0)

    @classmethod
    async def attach_worker(
        cls, pause: ListedPause, *, on_output: Callable[[Output], None] = lambda _: None
    ) -> DebugSession:
        """Attach the paused threads of a worker and wait for the stack of the first one.

        Raises:
            RaydebugError: it cannot be reached, or another debugger holds it.
        """
        self = cls(on_output)
        self._listens_at = (str(pause["ip"]), int(pause["debugger_port"] or 0))
        greeting = asyncio.ensure_future(self._greet(pause))
        try:
            await asyncio.shield(greeting)
        except asyncio.CancelledError:
            with contextlib.suppress(RaydebugError, RequestFailed):
                await greeting
                await self._dap.close()
            raise
        try:
            await self._configure(pause)
        except BaseException:
            await self.leave()
            raise
        return self

    async def resume(self, command: str) -> None:
        """Resume the thread; a worker that ends right after `continue` may do so before its response is sent."""
        try:
            await super().resume(command)
        except RaydebugError:
            # A connection that ends before `continue` arrives resumes the thread too.
            if command != "continue" or not self.ended.is_set():
                raise
            self.running, self.resumed_by = True, command

    async def _greet(self, pause: ListedPause) -> None:
        host, port = self._listens_at
        try:
            self._dap = await DapSession.connect(host, port, on_event=self._take, on_end=self._end)
        except (OSError, TimeoutError) as error:
            raise RaydebugError(
                f"the debugger of worker {pause['id']} cannot be reached",
                cause=f"Ray's listener is at {host}:{port}: {error or 'no answer in 5 s'}",
                fix=f"run this where {host} can be reached, on the cluster's head or in its network",
                code="worker.unreachable",
                exit_code=Exit.SESSION_LOST,
            ) from error
        await self.introduce("debugpy")

    async def _configure(self, pause: ListedPause) -> None:
        host, port = self._listens_at
        # Its response comes after `configurationDone` (debugpy 1.8.22 adapter/clients.py).
        attaching = self._dap.send("attach", {**ATTACH, "connect": {"host": host, "port": port}})
        attaching.add_done_callback(lambda _: self._initialized.set())
        async with asyncio.timeout(INITIALIZED_TIMEOUT_S):
            await self._initialized.wait()
        if attaching.done():
            failure = attaching.exception()
            reason = str(failure) if failure else str(attaching.result().get("message") or "no reason")
            is_busy = "already being debugged" in reason
            raise RaydebugError(
                f"worker {pause['id']} cannot be attached",
                cause=f"its debugger said: {reason}",
                fix="detach the other debugger: Ray's listener serves one at a time",
                code="pause.busy" if is_busy else "attach.refused",
                exit_code=Exit.TAKEN if is_busy else Exit.FAILED,
            )
        # Without a filter a post-mortem pause is resumed, and the state of the task is lost.
        await self.request("setExceptionBreakpoints", {"filters": ["uncaught"]})
        await self.request("configurationDone")
        await attaching
        self._note_pause(dict(pause))
        await self.wait_stop(timeout_s=INITIALIZED_TIMEOUT_S)
        self.pause["kind"] = "post-mortem" if self.post_mortem else "breakpoint"
        with contextlib.suppress(Exception):  # it only saves time
            await self.evaluate(_NO_DELAY)

    async def leave(self) -> None:
        """Detach from the worker: its threads resume."""
        await super().leave()
        for child in self._children:
            child.cancel()

    def _take(self, message: Message) -> None:
        name, body = message.get("event"), message.get("body") or {}
        if name == "initialized":
            self._initialized.set()
        elif name == "debugpyAttach":
            self._children.add(asyncio.ensure_future(self._free_child(body)))
        else:
            super()._take(message)

    async def _free_child(self, body: Message) -> None:
        """Release a child process of the worker, which waits for a client of its own because its parent has one."""
        with contextlib.suppress(OSError, TimeoutError, RequestFailed, ConnectionLost):
            child = await DapSession.connect(*self._listens_at)
            await child.request("initialize", {"adapterID": "debugpy"})
            attaching = child.send("attach", {k: v for k, v in body.items() if k not in ("name", "type", "request")})
            await child.next_event("initialized", timeout_s=INITIALIZED_TIMEOUT_S)
            await child.request("configurationDone")
            await attaching
            await child.request("disconnect", {"terminateDebuggee": False})
            await child.close()

    def lost(self) -> RaydebugError:
        pid = self.pause.get("pid", "?")
        return RaydebugError(
            f"the session ended: process {pid} is gone",
            cause=self._why_ended or "its debugger closed the connection without a reason",
            fix="list what is paused now with `raydebug paused`",
            code="session.process-gone",
            exit_code=Exit.SESSION_LOST,
        )
