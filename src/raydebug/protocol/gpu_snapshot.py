"""What a snapshot of torch's GPU allocator shows: live bytes by line, and the largest free block. Pure.

Source: torch 2.11 and 2.13 cuda/memory.py `_snapshot`: {"segments": [{"total_size", "blocks": [{"size", "state",
"frames": [{"filename", "line", "name"}]}]}], "device_traces": [[{"action", "size", "device_free", "frames"}]]}.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from raydebug.protocol.snapshot import GpuSummary, LiveLine

MAX_LINES = 40
MAX_BLOCKS = 5_000_000
BEFORE = "(allocated before the recording began)"
# Files of libraries; torch also names C++ files and frames without a name.
_LIBRARY = re.compile(r"/(site|dist)-packages/|/torch/|^<|/python3\.\d+/|\.(cpp|h|cu)$|^\?\?|^$")


def summarize(snapshot: Any) -> GpuSummary:
    """Return the summary of a snapshot.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: it is none.
    """
    found: GpuSummary = {"reserved": 0, "live": 0, "waiting": 0, "free": 0, "largest_free": 0}
    lines: dict[str, LiveLine] = {}
    count = 0
    for segment in snapshot["segments"]:
        found["reserved"] += _bytes(segment["total_size"])
        for block in segment["blocks"]:
            count += 1
            if count > MAX_BLOCKS:
                raise ValueError(f"it has more than {MAX_BLOCKS:,} blocks")
            size, state = _bytes(block["size"]), block["state"]
            if state == "active_allocated":
                found["live"] += size
                name = _place(block.get("frames"))
                row = lines.setdefault(name, {"line": name, "count": 0, "bytes": 0})
                row["count"] += 1
                row["bytes"] += size
            elif state in ("active_awaiting_free", "active_pending_free"):
                found["waiting"] += size
            else:
                found["free"] += size
                found["largest_free"] = max(found["largest_free"], size)
    found["lines"] = sorted(lines.values(), key=lambda row: -row["bytes"])[:MAX_LINES]
    for entry in itertools.islice(itertools.chain.from_iterable(snapshot.get("device_traces", [])), MAX_BLOCKS):
        if entry["action"] == "oom":
            found |= {"asked": _bytes(entry["size"]), "asked_at": _place(entry.get("frames"))}
            found["device_free"] = _bytes(entry.get("device_free", 0))
    return found


def _bytes(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError("a size is no number of bytes")
    return value


def _place(frames: Any) -> str:
    """Return the innermost line of the user's program, or of a library."""
    frames = frames or []
    own = next((frame for frame in frames if not _LIBRARY.search(frame["filename"])), frames[0] if frames else None)
    return BEFORE if own is None else f"{own['filename']}:{own['line']} {own['name']}"[:500]
