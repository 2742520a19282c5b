"""HTTP on the clients' port: GET /pauses (token), GET /health."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11

from raydebug.gateway.pauses import Pauses
from raydebug.worker import handshake

REQUEST_TIMEOUT_S = 5.0
MAX_REQUEST_BYTES = 8 * 1024


async def serve(
    first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, token: str, pauses: Pauses
) -> None:
    """Answer one HTTP request and close."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST_BYTES)
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            request = await _receive(connection, first, reader)
        status, body = _respond(request, token, pauses)
    except h11.RemoteProtocolError as error:
        status, body = 400, {"error": {"code": "http.malformed", "message": str(error)}}
    except (OSError, TimeoutError):
        writer.close()
        return
    data = json.dumps(body).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(data))), ("Connection", "close")]
    if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
        writer.write(connection.send(h11.Response(status_code=status, headers=headers)) or b"")
        writer.write(connection.send(h11.Data(data=data)) or b"")
    await writer.drain()
    writer.close()


async def _receive(connection: h11.Connection, data: bytes, reader: asyncio.StreamReader) -> h11.Request:
    while True:
        connection.receive_data(data)
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            raise h11.RemoteProtocolError("no request")
        data = await reader.read(4096)


def _respond(request: h11.Request, token: str, pauses: Pauses) -> tuple[int, dict[str, Any]]:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in request.headers}
    path = request.target.decode("latin-1").partition("?")[0]
    if "origin" in headers:  # a web page asked; no page has business here
        return 403, _refusal("http.origin", "requests from web pages are refused")
    if path == "/health" and request.method == b"GET":
        return 200, {"status": "ok"}
    if not handshake.same(f"Bearer {token}", headers.get("authorization", "")):
        return 401, _refusal("auth.wrong-token", "the token is missing or not this cluster's")
    if path == "/pauses" and request.method == b"GET":
        return 200, {"version": 1, "pauses": [pause.describe() for pause in pauses.listed()]}
    return 404, _refusal("http.not-found", "there is /pauses and /health, to GET")


def _refusal(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}
