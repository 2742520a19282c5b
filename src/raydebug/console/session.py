"""A debug session with one pause: attach, evaluate, step, resume, detach."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from raydebug.client.gateway_client import unproven
from raydebug.cluster.known_folders import copies_on
from raydebug.cluster.state import Cluster
from raydebug.console import probes
from raydebug.console.frames import Stack
from raydebug.dap import ConnectionLost, DapSession, RequestFailed
from raydebug.errors import Exit, RaydebugError
from raydebug.protocol.client_handshake import NotProven
from raydebug.protocol.lost_peers import OUT_OF_REACH
from raydebug.protocol.messages import COPIES
from raydebug.protocol.wire import Message

_TAKEN = ("pause.busy", "process.asked")
_GONE = "pause.gone"
_REQUEST_TIMEOUT_S = 30.0
_REASON_TIMEOUT_S = 1.0
_INTERRUPT_TIMEOUT_S = 5.0
_INTERRUPT_PERIOD_S = 0.05


class GatewayAddress(NamedTuple):
    """Host and port of a gateway, the token that it has to hold, and what returns the COPIES that there are now."""

    host: str
    port: int
    token: str
    reads_exceptions: bool = True  # their texts come from the user's `__str__`, which pydevd calls
    copies: Callable[[], list[Message]] = list

    @classmethod
    def of(cls, cluster: Cluster, *, reads_exceptions: bool = True) -> GatewayAddress:
        """Return the address of a cluster's gateway; the token's file is read.

        Raises:
            RaydebugError: it cannot be read.
        """

        def copies() -> list[Message]:
            return [{"localRoot": here, "remoteRoot": there} for there, here in copies_on(cluster).items()]

        return cls(cluster.gateway_host, cluster.gateway_port, cluster.token, reads_exceptions, copies)

    async def open(self, target: str, *, steal: bool, on_output: Callable[[Output], None]) -> DebugSession:
        """Attach a pause and wait for its stack.

        Args:
            target: a pause's id; or `next` or a running process, for which it waits without a limit.
            steal: take it from the client that holds it.
            on_output: called with the output of the process.

        Raises:
            RaydebugError: no gateway answers, or it refused; then with the gateway's cause and fix.
        """
        session = DebugSession(on_output)
        await session.attach(self, target, steal=steal)
        return session


class EvaluationFailed(Exception):
    """An expression or statement raised in the paused process; the message is the whole traceback."""


@dataclass(frozen=True)
class Output:
    """Output of the attached process, with DAP's category (stdout, stderr, important)."""

    category: str
    text: str


class DebugSession:
    """An attached pause, made by `GatewayAddress.open`."""

    _reads_exceptions = True
    _copies: Sequence[Message] = ()
    stays_paused = True  # the thread stays paused when we disconnect
    _leave_timeout_s = 2.0

    def __init__(self, on_output: Callable[[Output], None]) -> None:
        self._on_output = on_output
        self._dap: DapSession
        self._address = ""
        self._stops: asyncio.Queue[Message | None] = asyncio.Queue()
        self._why_ended = ""
        self._evaluating: list[str] = []
        self._leaving = False
        self.ended = asyncio.Event()
        self._since_s, self._received_at = 0.0, time.monotonic()
        self.pause: Message = {}
        self.stop: Message = {}
        self.stack = Stack()
        self.exception: Message | None = None
        self.running = False
        self.resumed_by = ""

    async def attach(self, address: GatewayAddress, target: str, *, steal: bool) -> None:
        """Begin the session; see `GatewayAddress.open`."""
        self._address = f"{address.host}:{address.port}"
        self._reads_exceptions = address.reads_exceptions
        try:
            self._dap = await DapSession.connect(
                address.host, address.port, token=address.token, on_event=self._take, on_end=self._end
            )
        except NotProven as error:
            raise unproven(error, self._address) from error
        except (OSError, TimeoutError) as error:
            raise RaydebugError(
                f"no gateway answers at {address.host}:{address.port}",
                cause=f"the connection failed: {error or 'no answer in 5 s'}",
                fix="look with `raydebug ps`, start the cluster with `raydebug up`",
                code="gateway.unreachable",
                exit_code=Exit.SESSION_LOST,
            ) from error
        try:
            await self._open(address, target, steal=steal)
        except BaseException:
            await self._dap.close()
            raise

    async def _open(self, address: GatewayAddress, target: str, *, steal: bool) -> None:
        await self.introduce("raydebug")
        try:
            # No limit: with `next` the gateway answers when a pause begins, which may take hours.
            arguments: Message = {"target": target, "steal": steal}
            answer = await self.request("attach", arguments, timeout_s=None)
        except RequestFailed as refused:
            raise explain_refusal(refused) from refused
        self._note_pause(answer.get("pause") or {})
        self._copies = address.copies()  # not earlier: the pause may be of a job that began while it was waited for
        await self.request("configurationDone", {COPIES: self._copies} if self._copies else None)
        try:
            await self.wait_stop(timeout_s=_REQUEST_TIMEOUT_S)
        except TimeoutError as error:
            raise RaydebugError(
                f"the thread of pause {self.pause.get('id')} has not stopped within {_REQUEST_TIMEOUT_S:.0f} s",
                cause="it is still running the step that an earlier client requested",
                fix="attach again later: the pause is listed where the step ends",
                code="session.no-stop",
                exit_code=Exit.SESSION_LOST,
            ) from error

    async def introduce(self, adapter: str) -> None:
        """Send the first request of a session to an adapter of this name."""
        hello = {"clientID": "raydebug", "clientName": f"raydebug attach (pid {os.getpid()})", "adapterID": adapter,
                 "pathFormat": "path", "linesStartAt1": True, "columnsStartAt1": True}  # fmt: skip
        await self.request("initialize", hello)

    def named_here(self, path: str) -> str:
        """Return the name that a file of the process has on this machine, as frames have it."""
        for copy in self._copies:
            if path.startswith(f"{copy['remoteRoot']}/"):
                return str(copy["localRoot"]) + path.removeprefix(copy["remoteRoot"])
        return path

    # Requests

    async def request(
        self, command: str, arguments: Message | None = None, *, timeout_s: float | None = _REQUEST_TIMEOUT_S
    ) -> Message:
        """Send a request and return the body of its response.

        Raises:
            RequestFailed: refused.
            RaydebugError: the session is lost, or no response came in time.
        """
        try:
            return await self._dap.request(command, arguments, timeout_s=timeout_s)
        except RequestFailed as refused:
            if refusal_code(refused) != _GONE:
                raise
            with contextlib.suppress(TimeoutError):  # `terminated` follows, with the reason
                async with asyncio.timeout(_REASON_TIMEOUT_S):
                    await self.ended.wait()
            raise self.lost() from refused
        except ConnectionLost as error:
            raise self.lost() from error
        except TimeoutError as error:
            raise RaydebugError(
                f"the paused process did not answer '{command}' within {timeout_s:.0f} s",
                cause=f"process {self.pause.get('pid', '?')} is busy, or stopped from outside",
                fix="try again, or look at the process on its node",
                code="session.no-answer",
                exit_code=Exit.SESSION_LOST,
            ) from error

    async def evaluate(self, code: str, *, context: str = "repl") -> str | None:
        """Evaluate an expression or statement in the selected frame and return its value as text; None for None.

        Args:
            code: the expression or statement.
            context: DAP's. pydevd cuts values at 64 KiB in `repl`, never in `clipboard`; but there it returns a failure
                as if it were the value, and the output of the code goes to the job's log.

        Raises:
            EvaluationFailed: it raised, or does not parse.
            RaydebugError: the session is lost.
        """
        frame = self.stack.frame
        arguments: Message = {"expression": code, "context": context, "format": {"rawString": True}}
        arguments |= {"frameId": frame.id} if frame else {}
        self._evaluating.append(code)
        evaluation = asyncio.ensure_future(self.request("evaluate", arguments, timeout_s=None))
        evaluation.add_done_callback(lambda _: self._evaluating.remove(code))
        try:
            body = await asyncio.shield(evaluation)  # a caller that is cancelled ends nothing there: see `interrupt`
        except RequestFailed as failed:
            raise EvaluationFailed(str(failed.body.get("result") or failed)) from failed
        # pydevd sends None as an empty text without a type (pydevd_comm.py internal_evaluate_expression_json, 1.8.22).
        return str(body.get("result", "")) if body.get("type") else None

    async def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the code that we evaluate; only in the main thread this also ends a sleep.

        Code that the process has not begun yet is interrupted when it begins, within _INTERRUPT_TIMEOUT_S seconds.
        """
        with contextlib.suppress(RequestFailed, ConnectionLost, TimeoutError):
            async with asyncio.timeout(_INTERRUPT_TIMEOUT_S):
                for code in list(self._evaluating):
                    await self._interrupt(code)

    async def _interrupt(self, code: str) -> None:
        # Without a frame, another thread than the busy paused one evaluates it.
        arguments = {"expression": probes.as_interrupt(code), "context": "watch"}
        while code in self._evaluating:
            answer = await self._dap.request("evaluate", arguments, timeout_s=None)
            if answer.get("result") == "True":
                return
            await asyncio.sleep(_INTERRUPT_PERIOD_S)

    async def locals(self) -> list[Message]:
        """Return the selected frame's locals as DAP variables, as pydevd orders them."""
        frame = self.stack.frame
        if frame is None:
            return []
        scopes = (await self.request("scopes", {"frameId": frame.id})).get("scopes") or []
        if not scopes:
            return []
        answer = await self.request("variables", {"variablesReference": scopes[0]["variablesReference"]})
        return list(answer.get("variables") or [])

    # Resuming

    async def resume(self, command: str) -> None:
        """Resume the thread by `continue`, `next`, `stepIn` or `stepOut`; then call `wait_stop`."""
        while not self._stops.empty():  # stops from before this resume
            self._stops.get_nowait()
        await self.request(command, {"threadId": self.stop.get("threadId", 0)})
        self.running, self.resumed_by = True, command

    async def wait_stop(self, *, timeout_s: float | None = None) -> bool:
        """Wait until this thread or another one of the process stops, and read its stack.

        Returns:
            True if a new pause began (a breakpoint), False at the end of a step.

        Raises:
            RaydebugError: the session is lost.
            TimeoutError: nothing stopped within timeout_s seconds.
        """
        async with asyncio.timeout(timeout_s):
            body = await self._stops.get()
        if body is None:
            self._stops.put_nowait(None)
            raise self.lost()
        self.stop, self.running = body, False
        fresh = "pause" in body and body["pause"].get("id") != self.pause.get("id")
        if "pause" in body:
            self._note_pause(body["pause"])
        thread = {"threadId": body.get("threadId", 0)}
        asked = [self.request("stackTrace", thread)]
        if self.post_mortem and self._reads_exceptions:
            asked.append(self.request("exceptionInfo", thread))
        try:
            stack, *exception = await asyncio.gather(*asked)
        except RequestFailed as failed:
            raise RaydebugError(
                "the stack of the paused thread cannot be read",
                cause=f"'{failed.command}' was refused: {failed}",
                fix="list the pauses with `raydebug paused` and attach again",
                code="session.no-stack",
                exit_code=Exit.SESSION_LOST,
            ) from failed
        self.stack = Stack.parse(stack.get("stackFrames") or [])
        self.exception = exception[0] if exception else None
        return fresh

    @property
    def paused_for_s(self) -> float:
        """Seconds since the pause began; a step begins none."""
        return self._since_s + time.monotonic() - self._received_at

    @property
    def post_mortem(self) -> bool:
        """Whether the thread stopped because of an exception: its frames have ended and cannot be stepped."""
        return self.stop.get("reason") == "exception"

    async def leave(self) -> None:
        """Disconnect; a paused thread stays paused for the next client."""
        if not self.ended.is_set():
            await self.interrupt()  # abandoned evaluations would keep the paused thread busy for good
            self._leaving = True
            with contextlib.suppress(ConnectionLost, RequestFailed, TimeoutError):  # the connection is closed next
                await self._dap.request("disconnect", timeout_s=self._leave_timeout_s)
        await self._dap.close()

    # Events

    def _note_pause(self, pause: Message) -> None:
        self.pause = pause
        since = pause.get("since_s")
        self._since_s, self._received_at = float(since) if isinstance(since, (int, float)) else 0.0, time.monotonic()

    def _take(self, message: Message) -> None:
        body = message.get("body") or {}
        name = message.get("event")
        if name == "stopped":
            self._stops.put_nowait(body)
        elif name == "output":
            self._on_output(Output(str(body.get("category", "console")), str(body.get("output", ""))))
        elif name == "terminated":
            self._why_ended = str(body.get("reason") or "the process ended")
            if self._leaving:  # the response to `disconnect` follows
                return
            asyncio.ensure_future(self._dap.close())  # noqa: RUF006 - ends with the session, which waits for `ended`

    def _end(self) -> None:
        self.ended.set()
        self._stops.put_nowait(None)

    @property
    def process_gone(self) -> bool:
        """Whether the session ended because its process did."""
        return self.ended.is_set() and bool(self._why_ended)

    def lost(self) -> RaydebugError:
        """Return the error that names what is lost: the process, the gateway, or the network between."""
        if self._why_ended:
            gone = "the process ended" in self._why_ended
            pid, pause = self.pause.get("pid", "?"), self.pause.get("id", "?")
            what = f"process {pid} is gone" if gone else f"pause {pause} is over"
            cause = f"the gateway said: {self._why_ended}"
            fix = "list what is paused now with `raydebug paused`"
            code = "session.process-gone" if gone else "session.pause-over"
        elif (failure := self._dap.failure) is not None and failure.errno in OUT_OF_REACH:
            what, cause = "the gateway is out of reach", f"{self._address} does not answer: {failure.strerror}"
            fix = "the task stays paused: `raydebug attach` again when the network is back"
            code = "session.gateway-out-of-reach"
        else:
            what, cause = "the gateway is gone", "it closed the connection without a reason"
            fix = "look at the cluster with `raydebug ps`; a paused process stays paused"
            code = "session.gateway-gone"
        return RaydebugError(f"the session ended: {what}", cause=cause, fix=fix, code=code, exit_code=Exit.SESSION_LOST)


def explain_refusal(refused: RequestFailed) -> RaydebugError:
    """Return the error for a refusal, with the cause and fix that the gateway gave."""
    error = refused.body.get("error") or {}
    code = refusal_code(refused) or "attach.refused"
    what = "the process cannot be paused" if code.startswith("process.") else "the pause cannot be attached"
    return RaydebugError(
        what,
        cause=str(error.get("cause") or refused),
        fix=str(error.get("fix") or "list the pauses with `raydebug paused`"),
        code=code,
        exit_code=Exit.TAKEN if code in _TAKEN else Exit.FAILED,
    )


def refusal_code(refused: RequestFailed) -> str:
    """Return the gateway's error code of a refusal; empty when pydevd refused."""
    error = refused.body.get("error")
    return str(error.get("code") or "") if isinstance(error, dict) else ""
