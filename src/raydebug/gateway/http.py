"""HTTP on the clients' port: GET /health without the token, the other PATHS with it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

import h11

from raydebug.gateway import client_requests, logs
from raydebug.gateway.client import Services
from raydebug.gateway.client_requests import Refused
from raydebug.gateway.control import DESCRIBED_FOR_S, Choice, Control
from raydebug.gateway.snapshots import Snapshots
from raydebug.protocol import records, wire
from raydebug.protocol.listings import ListedStacks, with_frames
from raydebug.protocol.questions import QUESTIONS, Question

REQUEST_TIMEOUT_S = 5.0
MAX_REQUEST_BYTES = 8 * 1024
MAX_BODY_BYTES = 1024 * 1024
WRONG_TOKEN, CONFLICT, MISDIRECTED, TIMED_OUT = 401, 409, 421, 504
PAUSE_WITHIN_S, PAUSE_AT_MOST_S = 10.0, 3600.0
ANSWERS_WITHIN_S, ANSWERS_AT_MOST_S = 0.3, 30.0
PATHS = (
    "/health, /status, /pauses, /processes, /processes/NAME, /stacks, /snapshots, /snapshots/JOB, /snapshots/JOB/ID,"
    " /deaths/JOB/NUMBER, /pause, /breaks, /breaks/ID and /jobs/ID"
)
PROCESSES_IN_A_PIECE = 64
Listed = TypeVar("Listed")
_NONE: Mapping[str, object] = {}
Answer = tuple[int, Mapping[str, object] | AsyncIterator[bytes]]


class BreakpointsRequestBody(TypedDict, total=False):
    """Body of `POST /breaks`."""

    breaks: list[records.BreakpointSpec]
    job: records.Name | None


class PauseRequestBody(TypedDict, total=False):
    """Body of `POST /pause`."""

    target: records.Name
    timeout_s: float


class ProcessesRequestBody(Choice, total=False):
    """Body of `POST /processes/NAME`, beside `body`, and of `POST /stacks`."""

    timeout_s: float
    digests: bool  # digests may stand for frames, which are then sent once


class SnapshotRequestBody(TypedDict, total=False):
    """Body of `POST /snapshots`: the pause, or the process as `attach` names it, to make one of."""

    pause: records.Name


class HttpApi:
    """Answers HTTP requests."""

    def __init__(
        self,
        services: Services,
        control: Control,
        snapshots: Snapshots,
        describe: Callable[[], Mapping[str, object]],
    ) -> None:
        self._services = services
        self._control = control
        self._snapshots = snapshots
        self._describe = describe
        self._hosts: frozenset[str] = frozenset()
        self.dial = ""  # where processes connect to; empty for all addresses

    def allow_hosts(self, hosts: Iterable[str]) -> None:
        """Accept requests for these host names too; loopback is always accepted."""
        self._hosts = frozenset(host.lower() for host in hosts if host)

    async def serve(
        self,
        first: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_proven: Callable[[], None],
        *,
        is_proven: bool,
    ) -> None:
        """Answer one HTTP request and close.

        Args:
            first: bytes that were read already.
            reader: of the connection.
            writer: of the same.
            on_proven: called when the request has shown the token.
            is_proven: the client has proved that it holds the token, and need not send it.
        """
        peer = writer.get_extra_info("peername")
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST_BYTES)
        request: h11.Request | None = None
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = await _receive(connection, first, reader)
                status, body = self._refuse(request, is_proven=is_proven)
                sent = b"" if status else await _receive_body(connection, reader)
            if status == 0:
                on_proven()
                status, body = await self._respond(request, sent, reader, peer)
        except h11.RemoteProtocolError as error:
            status, body = 400, _refusal("http.malformed", str(error))
        except (OSError, TimeoutError):
            writer.close()
            return
        if status == WRONG_TOKEN:
            await self._services.throttle.delay_answer(logs.name_client("HTTP", peer), peer)
        headers = [("Content-Type", "application/json"), ("Connection", "close")]
        pieces = body if isinstance(body, AsyncIterator) else None
        data = json.dumps(body).encode() if pieces is None else b""
        headers += [("Content-Length", str(len(data)))] if pieces is None else []  # without it, it is sent in chunks
        if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            writer.write(connection.send(h11.Response(status_code=status, headers=headers)) or b"")
            if request is None or request.method != b"HEAD":  # a response to HEAD has no body
                async for piece in pieces or _whole(data):
                    writer.write(connection.send(h11.Data(data=piece)) or b"")
                    await writer.drain()
                writer.write(connection.send(h11.EndOfMessage()) or b"")
        await writer.drain()
        writer.close()

    def _refuse(self, request: h11.Request, *, is_proven: bool) -> Answer:
        """Return the response to a request that needs no token or has no right one; status 0 accepts the request."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in request.headers}
        host = host_of(headers.get("host", ""))
        if not _is_loopback(host) and host not in self._hosts:  # a web page whose name resolves to us (DNS rebinding)
            fix = "use a loopback address, or set RAYDEBUG_ALLOWED_HOSTS=NAME where the gateway starts"
            return MISDIRECTED, _refusal("http.host", "this gateway is not known by that host name", fix)
        if "origin" in headers:  # a request from a web page
            return 403, _refusal("http.origin", "requests from web pages are refused")
        if _path(request) == "/health" and request.method == b"GET":
            return 200, {"status": "ok"}
        if not is_proven and not wire.is_same(f"Bearer {self._services.token}", headers.get("authorization", "")):
            refused = client_requests.wrong_token() if headers.get("authorization") else client_requests.missing_token()
            return WRONG_TOKEN, _refusal(refused.code, str(refused), refused.fix)
        return 0, {}

    async def _respond(self, request: h11.Request, sent: bytes, reader: asyncio.StreamReader, peer: object) -> Answer:
        route: tuple[str, ...] = (request.method.decode("latin-1"), *_path(request).strip("/").split("/"))
        board = self._services.board
        try:
            match route:
                case ("GET", "status"):
                    return 200, {"version": 1, **self._describe(), "dial": self.dial}
                case ("GET", "pauses"):
                    pauses = sorted(board.listed(), key=lambda pause: int(pause.id))  # as they began
                    return 200, {"version": 1, "pauses": [board.describe(pause) for pause in pauses]}
                case ("GET", "processes"):
                    channels, ids = await self._control.described(DESCRIBED_FOR_S), self._pauses()
                    return 200, _in_pieces(channels, lambda it: {**it.describe(), "pauses": ids.get(it.instance, [])})
                case ("POST", "processes", name) if name in QUESTIONS and not QUESTIONS[name].only_gateway:
                    return 200, await self._ask(QUESTIONS[name], _document(sent))
                case ("POST", "processes", name):
                    why = f"this gateway knows no question '{name}' of clients; it may be of another version"
                    return 404, _refusal("question.unknown", why)
                case ("POST", "stacks"):
                    return 200, await self._stacks(sent)
                case ("POST", "pause"):
                    return await _unless_gone(self._pause(sent, peer), reader)
                case ("GET", "snapshots", job):
                    return 200, {"version": 1, "snapshots": self._snapshots.of_job(job)}
                case ("GET", "snapshots", job, snapshot_id):
                    file = self._snapshots.file_of(job, snapshot_id)
                    if file is not None:
                        return 200, {"version": 1, "data": base64.b64encode(file).decode("ascii")}
                case ("GET", "deaths", job, after) if after.isdecimal():
                    return 200, {"version": 1, "deaths": self._control.ended.of_job(job, int(after))}
                case ("POST", "snapshots"):
                    pause_id = records.read(_document(sent), SnapshotRequestBody, "the question")["pause"]
                    saved = await self._snapshots.save_pause(pause_id, board, self._control)
                    return 200, {"version": 1, "snapshot": saved}
                case ("GET", "breaks"):
                    return 200, {"version": 1, "breaks": self._control.describe_breaks()}
                case ("POST", "breaks"):
                    wanted = records.read(_document(sent), BreakpointsRequestBody, "the request")
                    return 200, {"version": 1, "breaks": self._control.add(wanted["breaks"], wanted.get("job"))}
                case ("DELETE", "breaks", break_id):
                    removed = self._control.remove([break_id])
                    await self._control.described()  # a process that answers this has removed the breakpoint before
                    return 200, {"version": 1, "removed": removed}
                case ("DELETE", "jobs", job):
                    self._control.forget_job(job)
                    return 200, {"version": 1}
        except Refused as refused:
            return CONFLICT, _refusal(refused.code, str(refused), refused.fix)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            return 400, _refusal("http.malformed", f"{type(error).__name__}: {error}")
        return 404, _refusal("http.not-found", f"there are {PATHS}")

    async def _ask(self, question: Question[Any, Any], document: dict[str, Any]) -> AsyncIterator[bytes]:
        wanted, timeout_s = _choice(document)
        body = records.read(document.get("body") or {}, question.body, "its body")
        return _in_pieces(await self._control.ask(question, body, wanted, timeout_s), lambda one: one)

    async def _stacks(self, sent: bytes) -> AsyncIterator[bytes]:
        wanted, timeout_s = _choice(_document(sent))
        found, frames = await self._control.fetch_stacks(wanted, timeout_s)
        pauses = self._pauses()
        shared = {"frames": frames} if wanted.get("digests") else {}

        def describe(one: ListedStacks) -> ListedStacks:
            threads = one["threads"] if shared else [with_frames(each, frames) for each in one["threads"]]
            return {**one, "threads": threads, "pauses": pauses.get(one["instance"], [])}

        return _in_pieces(found, describe, shared)

    def _pauses(self) -> dict[str, list[str]]:
        """Return the ids of the listed pauses of each process, by its instance."""
        found: dict[str, list[str]] = {}
        for pause in self._services.board.listed():
            found.setdefault(pause.process.instance, []).append(pause.id)
        return found

    async def _pause(self, sent: bytes, peer: object) -> Answer:
        wanted = records.read(_document(sent), PauseRequestBody, "the question")
        locations: list[str] = []
        board = self._services.board
        timeout_s = float(wanted.get("timeout_s", PAUSE_WITHIN_S))
        if not 0 < timeout_s <= PAUSE_AT_MOST_S:
            raise ValueError(f"timeout_s is from 0 to {PAUSE_AT_MOST_S:g}")
        try:
            async with asyncio.timeout(timeout_s):
                pause = await self._services.pause_requests.pause(
                    wanted["target"], logs.name_client("POST /pause", peer), locations.append
                )
        except TimeoutError:
            what = locations[-1] if locations else "it did not reach a line of the user's code"
            return TIMED_OUT, _refusal("process.not-stopped", f"not paused within {timeout_s:g} s: {what}")
        pause.reserved = False
        board.changed()
        return 200, {"version": 1, "pause": board.describe(pause)}


async def _in_pieces(
    processes: Sequence[Listed], describe: Callable[[Listed], Mapping[str, object]], more: Mapping[str, object] = _NONE
) -> AsyncIterator[bytes]:
    """Yield the JSON of a list of processes, and of more members, in pieces: others are answered in between."""
    yield b'{"version": 1, "processes": ['
    for begin in range(0, len(processes), PROCESSES_IN_A_PIECE):
        piece = [describe(process) for process in processes[begin : begin + PROCESSES_IN_A_PIECE]]
        yield (b", " if begin else b"") + json.dumps(piece)[1:-1].encode("ascii")
        await asyncio.sleep(0)
    yield b"]" + b"".join(f', "{name}": {json.dumps(value)}'.encode("ascii") for name, value in more.items()) + b"}"


async def _whole(data: bytes) -> AsyncIterator[bytes]:
    yield data


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
    """Read the body of an authenticated request."""
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


def _choice(document: object) -> tuple[ProcessesRequestBody, float]:
    wanted = records.read(document, ProcessesRequestBody, "the question")
    timeout_s = wanted.get("timeout_s", ANSWERS_WITHIN_S)
    if not 0 < timeout_s <= ANSWERS_AT_MOST_S:
        raise ValueError(f"timeout_s is from 0 to {ANSWERS_AT_MOST_S:g}")
    return wanted, timeout_s


def _document(sent: bytes) -> dict[str, Any]:
    """Return the JSON object of a request's body.

    Raises:
        ValueError: it is not one, or is nested too deep for the parser.
    """
    try:
        document = json.loads(sent)
    except RecursionError as error:
        raise ValueError("the body is nested too deep") from error
    if not isinstance(document, dict):
        raise ValueError("the body is not a JSON object")
    return document


def host_of(header: str) -> str:
    """Return the name or address in a Host header, without its port.

    >>> [host_of(host) for host in ("LOCALHOST:5678", "[::1]:5678", "gateway", "127.0.0.1:80", "")]
    ['localhost', '::1', 'gateway', '127.0.0.1', '']
    """
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or host.endswith(".localhost")


def _path(request: h11.Request) -> str:
    return request.target.decode("latin-1").partition("?")[0]


async def _unless_gone(answering: Coroutine[Any, Any, Answer], reader: asyncio.StreamReader) -> Answer:
    """Return an answer, unless the client closes the connection first.

    Raises:
        ConnectionResetError: the client closed the connection.
    """
    answer = asyncio.ensure_future(answering)
    leaving = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ConnectionResetError("the client has left")
        return answer.result()
    finally:
        answer.cancel()
        leaving.cancel()
        await asyncio.gather(answer, leaving, return_exceptions=True)


def _refusal(code: str, message: str, fix: str | None = None) -> Mapping[str, object]:
    return {"error": {"code": code, "message": message, **({"fix": fix} if fix else {})}}
