"""A connection that speaks DAP: the receive buffer of asyncio, and the end of a session with debugpy's adapter."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

import pytest

from raydebug.console.unmanaged_session import UnmanagedSession
from raydebug.dap import RECEIVE_BYTES, reduce_latency
from raydebug.errors import RaydebugError
from raydebug.protocol import wire
from raydebug.protocol.listings import ListedPause

SENT_BYTES = 8 * 1024 * 1024


class _Counting(asyncio.Protocol):
    """Records the size of each piece received."""

    def __init__(self) -> None:
        self.pieces: list[int] = []

    def data_received(self, data: bytes) -> None:
        self.pieces.append(len(data))


async def test_asyncio_receives_by_the_size_that_we_set():
    """A transport's undocumented `max_size` is the buffer size of each read in asyncio."""
    counting = _Counting()
    taken = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda *ends: taken.set_result(ends), "127.0.0.1", 0)
    async with server:
        _, other = await asyncio.open_connection(*server.sockets[0].getsockname())
        _, writer = await taken
        reduce_latency(writer)
        writer.transport.set_protocol(counting)
        other.write(b"x" * SENT_BYTES)
        async with asyncio.timeout(10):
            while sum(counting.pieces) < SENT_BYTES:
                await asyncio.sleep(0.01)
        assert max(counting.pieces) == RECEIVE_BYTES
        writer.transport.abort()
        other.transport.abort()


async def test_a_refused_debugger_waits_for_the_last_response():
    """debugpy's adapter sends `terminated` before its response to `disconnect`; without a reader for it, it ends."""
    heard: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = wire.Decoder()
        while data := await reader.read(1024):
            for message in decoder.feed(data):
                command = message["command"]
                if command == "attach":
                    writer.write(wire.encode(wire.refusal(0, message, "Server[pid=1] is already being debugged.")))
                    continue
                if command == "disconnect":
                    writer.write(wire.encode(wire.event(0, "terminated")))
                    with contextlib.suppress(TimeoutError):
                        heard.append(repr(await asyncio.wait_for(reader.read(1), 0.2)))
                writer.write(wire.encode(wire.response(0, message)))
        heard.append("end")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        pause = {"id": "a", "ip": "127.0.0.1", "debugger_port": server.sockets[0].getsockname()[1]}
        with pytest.raises(RaydebugError) as refused:
            await UnmanagedSession.attach_worker(cast("ListedPause", pause))
        assert refused.value.code == "pause.busy"
        async with asyncio.timeout(10):
            while "end" not in heard:
                await asyncio.sleep(0.01)
    assert heard == ["end"]
