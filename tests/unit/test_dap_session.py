"""The receive buffer of asyncio that a connection relies on."""

from __future__ import annotations

import asyncio

from raydebug.dap import RECEIVE_BYTES, reduce_latency

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
