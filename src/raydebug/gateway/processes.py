"""The session with the pydevd of one process, which the gateway keeps for as long as the process lives."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

from raydebug.dap import ConnectionLost, DapSession, RequestFailed
from raydebug.protocol import records, wire
from raydebug.protocol.lost_peers import OUT_OF_REACH
from raydebug.protocol.records import BadRecord, Frame
from raydebug.protocol.wire import Message

log = logging.getLogger("raydebug.gateway")

REQUESTS_PER_DIAL = 1_000_000  # the numbers of requests tell the connections of a process that dials in again apart
# pydevd answers these itself; the order is the one that its own adapter uses (debugpy 1.8.22 adapter/clients.py).
SESSION_SET_UP: tuple[tuple[str, Message], ...] = (
    (
        "initialize",
        {"clientID": "raydebug", "adapterID": "python", "pathFormat": "path", "linesStartAt1": True,
         "columnsStartAt1": True, "supportsVariableType": True},
    ),
    # Only the thread that hit the breakpoint is suspended: watchdog and heartbeat threads keep running.
    ("attach", {"justMyCode": False, "showReturnValue": True, "stopAllThreadsOnSuspend": False,
                "steppingResumesAllThreads": False, "terminateChildProcesses": False}),
    ("setDebuggerProperty", {"multiThreadsSingleNotification": False}),
    ("setExceptionBreakpoints", {"filters": ["uncaught"]}),  # without it post-mortem pauses are ignored
    ("configurationDone", {}),
)  # fmt: skip
# pydevd writes a response's own fields before its body (debugpy 1.8.22, pydevd_schema.py, `to_dict` of each response).
_RESPONSE_HEAD = re.compile(rb'"request_seq":\s*(\d+).{0,80}?"command":\s*"(\w+)"')


class Process:
    """One process under the debugger.

    Raises:
        BadRecord: the process's description of itself is not what protocol/records.py expects.
    """

    def __init__(self, about: Any) -> None:
        self.about = records.read(about, records.ProcessRecord, "the process")
        self.session: DapSession
        self.ended = False
        self._is_held = False
        self._superseded = ""

    @property
    def title(self) -> str:
        """Name the process for people."""
        return f"pid {self.about.get('pid')} on {self.about.get('ip') or 'this host'}"

    @property
    def instance(self) -> str:
        """Id of the process, the same in each of its dial-ins."""
        return str(self.about.get("instance"))

    async def hold(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_event: Callable[[Message], object],
        on_end: Callable[[], object],
    ) -> None:
        """Set up the session over an authenticated connection.

        Raises:
            RequestFailed, ConnectionLost: pydevd refuses or is gone, or the process has dialled in again.
        """
        if self._superseded:
            raise ConnectionLost(self._superseded)
        loop, self._is_held = asyncio.get_running_loop(), True
        # Responses reach their futures by call_soon; events must not overtake them.
        self.session = DapSession(
            reader,
            writer,
            on_event=lambda message: loop.call_soon(on_event, message),
            on_end=lambda: loop.call_soon(on_end),
            first_seq=REQUESTS_PER_DIAL * int(self.about.get("dials", 0)) + 1,
            decoder=wire.Decoder(on_oversized=refuse_oversized),
        )
        answers = [self.session.send(command, arguments) for command, arguments in SESSION_SET_UP]
        for (command, _), answer in zip(SESSION_SET_UP, await asyncio.gather(*answers), strict=True):
            if not answer.get("success"):
                raise RequestFailed(command, str(answer.get("message")), {})

    async def superseded(self) -> None:
        """Close the session: the process has dialled in again because its old connection broke."""
        self._superseded = f"its process ({self.title}) lost its connection and has dialled in again"
        if self._is_held:
            await self.session.close()

    def why_ended(self) -> str:
        """Return why the session has ended."""
        failure = self.session.failure
        if self._superseded:
            return self._superseded
        if failure is not None and failure.errno in OUT_OF_REACH:
            again = "if it is still paused, it dials in again"
            return f"the process ({self.title}) is out of reach: {failure.strerror}; {again}"
        return f"the process ended ({self.title})"

    async def pause_thread(self, thread_id: object) -> Message:
        """Ask pydevd to suspend a thread; return the body of the response.

        The id is checked first: given the id of a frame, pydevd's reader thread ends, and with it the session and every
        pause (debugpy 1.8.22, pydevd_api.py, `request_suspend_thread`).

        Raises:
            RequestFailed, ConnectionLost, TimeoutError: there is no such thread, or no response.
        """
        threads = (await self.session.request("threads")).get("threads")
        listed = threads if isinstance(threads, list) else []
        known = [thread.get("id") for thread in listed if isinstance(thread, dict)]
        if not isinstance(thread_id, int) or thread_id not in known:
            raise RequestFailed("pause", f"the process has no thread {thread_id}", {})
        return await self.session.request("pause", {"threadId": thread_id})

    async def top_frame(self, thread_id: int) -> Frame:
        """Return the innermost frame of a suspended thread: `id`, `name`, `line` and `source`.

        Raises:
            RequestFailed, ConnectionLost, TimeoutError: there is none, or no valid response.
        """
        arguments = {"threadId": thread_id, "levels": 1}
        frames = (await self.session.request("stackTrace", arguments)).get("stackFrames")
        try:
            return records.read(frames[0] if isinstance(frames, list) and frames else None, Frame, "the frame")
        except BadRecord as error:
            raise RequestFailed("stackTrace", str(error), {}) from error


def refuse_oversized(length: int, head: bytes) -> Message:
    """Return the message that replaces one of pydevd over the size limit: a failed response, or an `output` event.

    Without a replacement one oversized value would end the session. The length is in bytes.
    """
    response = _RESPONSE_HEAD.search(head)
    mib, limit_mib = length / 2**20, wire.MAX_BODY_BYTES / 2**20
    text = f"the response has {mib:.0f} MiB, more than the limit of {limit_mib:.0f} MiB"
    if response is None:
        log.warning("skipped an oversized message of a process: %d bytes", length)
        return wire.event(0, "output", {"category": "important", "output": f"raydebug: {text}\n"})
    to = {"seq": int(response[1]), "command": response[2].decode("ascii", "replace")}
    return wire.refusal(0, to, text)
