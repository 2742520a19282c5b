"""Slow connections without a token, to test that they keep nobody waiting. Standard library only, for containers.

`python slow_connections.py HOST PORT COUNT SECONDS` keeps COUNT connections open for so long; each sends a byte of a
message's header every 0.1 s, and one that is closed is opened again. It prints how many it has opened.
"""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
import sys
import time

EVERY_S = 0.1
HEADER = b"Content-Length: 200\r\n" + b"X-Padding: " + b"x" * 200  # without an end
OPENED_AT_ONCE = 100


def drip(host: str, port: int, count: int, seconds: float) -> int:
    """Keep the connections open, and return how many were opened in all."""
    opened = 0
    positions: dict[socket.socket, itertools.count[int]] = {}
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        while (now := time.monotonic()) < until:
            while len(positions) < count:
                one = socket.socket()
                one.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    one.connect((host, port))
                positions[one] = itertools.count()
                selector.register(one, selectors.EVENT_READ)
                opened += 1
                if opened % OPENED_AT_ONCE == 0:
                    time.sleep(0.001)
            for one, position in list(positions.items()):
                try:
                    at = next(position)
                    one.send(HEADER[at : at + 1] or b"x")
                except BlockingIOError:
                    continue
                except OSError:
                    _forget(one, positions, selector)
            while (left := now + EVERY_S - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    _forget(key.fileobj, positions, selector)  # type: ignore[arg-type]
        for one in list(positions):
            _forget(one, positions, selector)
    return opened


def _forget(
    one: socket.socket, positions: dict[socket.socket, itertools.count[int]], selector: selectors.BaseSelector
) -> None:
    with contextlib.suppress(KeyError):
        selector.unregister(one)
    positions.pop(one, None)
    one.close()


if __name__ == "__main__":
    print(drip(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])), flush=True)
