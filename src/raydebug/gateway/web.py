"""HTTP on the clients' port: GET /health, and with the token GET /pauses and /processes, POST /pause, and /breaks."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Coroutine
from typing import Any

import h11

from raydebug.gateway import audit
from raydebug.gateway.asked import Asked
from raydebug.gateway.control import Control, ControlLine
from raydebug.gateway.pauses import Pauses
from raydebug.gateway.refusals import Refused
from raydebug.gateway.tries import WrongTries
from raydebug.worker import handshake

REQUEST_TIMEOUT_S = 5.0
MAX_REQUEST_BYTES = 8 * 1024
MAX_BODY_BYTES = 1024 * 1024
WRONG_TOKEN, CONFLICT, TOO_LATE = 401, 409, 504
PAUSE_WITHIN_S, PAUSE_AT_MOST_S = 10.0, 3600.0
Answer = tuple[int, dict[str, Any]]


class Web:
    """The answers to HTTP requests.

    Args:
        token: the cluster's.
        pauses, control, asked: what is asked for.
        tries: counts wrong tokens.
    """

    def __init__(self, token: str, pauses: Pauses, control: Control, asked: Asked, tries: WrongTries) -> None:
        self._token = token
        self._pauses = pauses
        self._control = control
        self._asked = asked
        self._tries = tries

    async def serve(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one HTTP request and close."""
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST_BYTES)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = await _receive(connection, first, reader)
                status, body = self._refuse(request)
                sent = b"" if status else await _receive_body(connection, reader)
            if status == 0:
                status, body = await self._respond(request, sent, reader, writer.get_extra_info("peername"))
        except h11.RemoteProtocolError as error:
            status, body = 400, _refusal("http.malformed", str(error))
        except (OSError, TimeoutError):
            writer.close()
            return
        if status == WRONG_TOKEN:
            await self._tries.answer_late()
        data = json.dumps(body).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(data))), ("Connection", "close")]
        if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            writer.write(connection.send(h11.Response(status_code=status, headers=headers)) or b"")
            writer.write(connection.send(h11.Data(data=data)) or b"")
        await writer.drain()
        writer.close()

    def _refuse(self, request: h11.Request) -> Answer:
        """Return the answer to a request that needs no token or does not hold it; status 0 lets it go on."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in request.headers}
        if "origin" in headers:  # a web page asked; no page has business here
            return 403, _refusal("http.origin", "requests from web pages are refused")
        if _path(request) == "/health" and request.method == b"GET":
            return 200, {"status": "ok"}
        if not handshake.same(f"Bearer {self._token}", headers.get("authorization", "")):
            return WRONG_TOKEN, _refusal("auth.wrong-token", "the token is missing or not this cluster's")
        return 0, {}

    async def _respond(self, request: h11.Request, sent: bytes, reader: asyncio.StreamReader, peer: object) -> Answer:
        route: tuple[str, ...] = (request.method.decode("latin-1"), *_path(request).strip("/").split("/"))
        try:
            match route:
                case ("GET", "pauses"):
                    return 200, {"version": 1, "pauses": [pause.describe() for pause in self._pauses.listed()]}
                case ("GET", "processes"):
                    lines = await self._control.described()
                    return 200, {"version": 1, "processes": [self._describe(line) for line in lines]}
                case ("POST", "pause"):
                    return await _unless_gone(self._pause(json.loads(sent), peer), reader)
                case ("GET", "breaks"):
                    return 200, {"version": 1, "breaks": self._control.describe_breaks()}
                case ("POST", "breaks"):
                    asked = json.loads(sent)
                    return 200, {"version": 1, "breaks": self._control.add(list(asked["breaks"]), asked.get("job"))}
                case ("DELETE", "breaks", break_id):
                    return 200, {"version": 1, "removed": self._control.remove([break_id])}
                case ("DELETE", "jobs", job):
                    self._control.forget_job(job)
                    return 200, {"version": 1}
        except (ValueError, KeyError, TypeError) as error:
            return 400, _refusal("http.malformed", f"{type(error).__name__}: {error}")
        return 404, _refusal("http.not-found", "there are /health, /pauses, /processes, /pause, /breaks and /jobs/ID")

    def _describe(self, line: ControlLine) -> dict[str, Any]:
        return {**line.describe(), "pauses": [pause.id for pause in self._pauses.of_process(line.instance)]}

    async def _pause(self, question: Any, peer: object) -> Answer:
        if not isinstance(question, dict):
            raise TypeError("a question is an object with a target")
        words: list[str] = []
        timeout_s = float(question.get("timeout_s", PAUSE_WITHIN_S))
        if not 0 < timeout_s <= PAUSE_AT_MOST_S:
            raise ValueError(f"timeout_s is from 0 to {PAUSE_AT_MOST_S:g}")
        try:
            async with asyncio.timeout(timeout_s):
                pause = await self._asked.pause(
                    str(question["target"]), audit.title_of("POST /pause", peer), words.append
                )
        except Refused as refused:
            return CONFLICT, _refusal(refused.code, str(refused), refused.fix)
        except TimeoutError:
            what = words[-1] if words else "it did not come to a line of the user's code"
            return TOO_LATE, _refusal("process.not-stopped", f"not stopped within {timeout_s:g} s: {what}")
        pause.promised = False
        self._pauses.changed()
        return 200, {"version": 1, "pause": pause.describe()}


async def _receive(connection: h11.Connection, data: bytes, reader: asyncio.StreamReader) -> h11.Request:
    while True:
        connection.receive_data(data)
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            raise h11.RemoteProtocolError("no request")
        data = await reader.read(4096)


async def _receive_body(connection: h11.Connection, reader: asyncio.StreamReader) -> bytes:
    """Read the body of a request whose token was right."""
    body = b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(4096))
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_BODY_BYTES:
                raise h11.RemoteProtocolError("the body is too large")
        else:
            return body


def _path(request: h11.Request) -> str:
    return request.target.decode("latin-1").partition("?")[0]


async def _unless_gone(answering: Coroutine[Any, Any, Answer], reader: asyncio.StreamReader) -> Answer:
    """Return an answer, unless the client closes before it is there.

    Raises:
        ConnectionResetError: it did; nobody waits for the answer any longer.
    """
    answer = asyncio.ensure_future(answering)
    leaving = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ConnectionResetError("the client has left")
        return answer.result()
    finally:
        for task in (answer, leaving):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await task


def _refusal(code: str, message: str, fix: str | None = None) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, **({"fix": fix} if fix else {})}}
