"""Takes what arrives on a stream in the turn of the loop in which it arrives, where it can be taken as it is.

A stream wakes the task that reads from it a turn later, and what that task asks of the loop comes one more turn later:
for a short message that is only handed on, most of its time. What is not taken goes the stream's way, as without a tap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Tap(asyncio.Protocol):
    """Offers what arrives to `take` first, while nothing that came earlier waits for the stream's reader.

    Args:
        writer: of the stream; its transport gets this protocol in front of the stream's own.
        take: returns whether it has taken the bytes.

    The reader of the stream calls `nothing_waits` each time that it is about to wait for more.
    """

    def __init__(self, writer: asyncio.StreamWriter, take: Callable[[bytes], bool]) -> None:
        transport = writer.transport
        stream = transport.get_protocol()
        assert isinstance(stream, asyncio.Protocol)
        self._stream = stream
        self._take = take
        self._is_open = False
        self._passed = 0
        self._loop = asyncio.get_running_loop()
        transport.set_protocol(self)

    def nothing_waits(self) -> None:
        """Note that the reader has dealt with all that it got; what it asked of the loop meanwhile still goes first."""
        self._loop.call_soon(self._open, self._passed)

    def _open(self, passed: int) -> None:
        self._is_open = passed == self._passed

    def data_received(self, data: bytes) -> None:
        if self._is_open and self._take(data):
            return
        self._is_open = False
        self._passed += 1
        self._stream.data_received(data)

    def eof_received(self) -> bool | None:
        return self._stream.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stream.connection_lost(exc)

    def pause_writing(self) -> None:
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        self._stream.resume_writing()
