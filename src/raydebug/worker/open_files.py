"""Read which TCP ports this process listens on, and which pipes it has open: others wait for its answers there.

Shared memory, in which queues are, counts as a pipe.

The kernel is asked about each socket of the process: its table of all connections (proc(5) /proc/net/tcp) takes 8 ms to
read where there are some hundred.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from raydebug.protocol.records import MAX_ITEMS

MAX_FILES = 4096
FILES = Path("/proc/self/fd")
SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - only what processes have open there is looked at


def read_open_files() -> tuple[list[int], list[int]]:
    """Return the ports that this process listens on, and the ids of its pipes: inodes, or `shared_memory_id`."""
    ports, pipes = set(), set()
    for name in os.listdir(FILES)[:MAX_FILES]:
        with contextlib.suppress(OSError, ValueError):  # it was closed meanwhile
            kind, _, inode = os.readlink(f"{FILES}/{name}").partition(":")
            if kind == "pipe":
                pipes.add(int(inode.strip("[]")))
            elif kind.startswith(SHARED_MEMORY):
                pipes.add(shared_memory_id(int(name)))
            elif kind == "socket" and (port := _listening_port(int(name))):
                ports.add(port)
    return sorted(ports)[:MAX_ITEMS], sorted(pipes)[:MAX_ITEMS]


def shared_memory_id(file: int) -> int:
    """Return the same number in each process that has this memory open; it is negative, as no pipe's is."""
    return -os.fstat(file).st_ino


def _listening_port(number: int) -> int | None:
    """Return the port of a listening socket; None of any other."""
    # Without SOCK_NONBLOCK this call itself makes the program's descriptor non-blocking, where the program has set a
    # default timeout (CPython 3.11 to 3.13 Modules/socketmodule.c, `init_sockobject`).
    own = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, 0, fileno=number)
    try:
        address = own.getsockname() if own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) else None
    finally:
        own.detach()  # it is not closed here: it belongs to the program
    return int(address[1]) if isinstance(address, tuple) else None
