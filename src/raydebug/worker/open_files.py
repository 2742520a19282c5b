"""Read which TCP ports this process listens on, and which pipes it has open: others wait for its answers there.

Source: proc(5) /proc/pid/fd and /proc/pid/net/tcp.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from raydebug.protocol.records import MAX_ITEMS

MAX_FILES = 4096
MAX_BYTES = 4_000_000  # of one of the kernel's tables: 26,000 connections
LISTENING = "0A"
FILES, TABLES = Path("/proc/self/fd"), (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))


def read_open_files() -> tuple[list[int], list[int]]:
    """Return the ports that this process listens on, and the inodes of its pipes and socket pairs."""
    kinds: dict[str, set[int]] = {"socket": set(), "pipe": set()}
    with os.scandir(FILES) as found:
        for number, one in enumerate(found):
            if number == MAX_FILES:
                break
            with contextlib.suppress(OSError, ValueError):  # it was closed meanwhile
                kind, _, inode = os.readlink(one.path).partition(":")
                kinds.get(kind, set()).add(int(inode.strip("[]")))
    ports, inodes = set(), set()
    for table in TABLES:
        with contextlib.suppress(OSError), table.open(encoding="ascii") as lines:
            for line in lines.read(MAX_BYTES).splitlines()[1:]:
                words = line.split()
                if len(words) > 9 and words[9].isdigit() and int(words[9]) in kinds["socket"]:
                    inodes.add(int(words[9]))
                    if words[3] == LISTENING:
                        ports.add(int(words[1].rpartition(":")[2], 16))
    pairs = kinds["socket"] - inodes
    return sorted(ports)[:MAX_ITEMS], sorted(kinds["pipe"] | pairs)[:MAX_ITEMS]
