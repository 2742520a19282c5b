"""What is taken in the turn of the loop in which it arrives, and that it overtakes nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from raydebug.dap.tap import Tap


@contextlib.asynccontextmanager
async def _streams() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, asyncio.StreamWriter]]:
    """The reader and writer of one end of a connection, and the writer of the other."""
    taken: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Future()
    server = await asyncio.start_server(lambda *ends: taken.set_result(ends), "127.0.0.1", 0)
    async with server, asyncio.timeout(10):
        _, other = await asyncio.open_connection(*server.sockets[0].getsockname())
        reader, writer = await taken
        try:
            yield reader, writer, other
        finally:
            other.transport.abort()
            writer.transport.abort()


async def test_what_is_taken_does_not_reach_the_stream():
    """Bytes that the tap takes are gone; others reach the stream's reader, and the stream's end does too."""
    async with _streams() as (reader, writer, other):
        taken: list[bytes] = []
        tap = Tap(writer, lambda data: data.startswith(b"mine") and not taken.append(data))
        tap.nothing_waits()
        await asyncio.sleep(0)
        other.write(b"mine 1")
        while not taken:
            await asyncio.sleep(0.01)
        other.write(b"yours")
        assert await reader.read(100) == b"yours"
        other.close()
        assert await reader.read(100) == b""
        assert taken == [b"mine 1"]


async def test_nothing_overtakes_what_waits_for_the_reader():
    """While earlier bytes wait, or what they asked of the loop is still to come, later ones go the stream's way."""
    async with _streams() as (reader, writer, other):
        order: list[str] = []
        tap = Tap(writer, lambda data: not order.append(f"tap {data.decode()}"))
        other.write(b"first")  # the tap is closed until the reader says that nothing waits
        while not reader._buffer:  # asyncio's own: there is no other way to see that it came
            await asyncio.sleep(0.01)
        tap.nothing_waits()  # said too early: something has come since that was not read
        tap.data_received(b" second")
        assert await reader.read(100) == b"first second"
        asyncio.get_running_loop().call_soon(order.append, "asked by the first")
        tap.nothing_waits()
        tap.data_received(b"third")
        assert await reader.read(100) == b"third"
        tap.nothing_waits()
        await asyncio.sleep(0)
        tap.data_received(b"fourth")
        assert order == ["asked by the first", "tap fourth"]


async def test_the_writer_still_waits_for_a_slow_reader():
    """The stream's own back-pressure works behind a tap: drain() waits until the other side reads."""
    async with _streams() as (_, writer, other):
        Tap(writer, lambda data: False)
        other.transport.pause_reading()
        writer.write(b"x" * (32 << 20))
        draining = asyncio.ensure_future(writer.drain())
        await asyncio.sleep(0.1)
        assert not draining.done()
        other.transport.set_protocol(asyncio.Protocol())  # lets all that it reads fall
        other.transport.resume_reading()
        await draining
