"""Read torch's flight recorder: the last collectives that this process called, in each of its process groups.

The control channel's thread reads it while the main thread is stuck in a collective. It asks for the JSON form without
stacks: with them the first reading takes 12 s. The time of a reading grows with the size of the recorder.

Source: torch 2.11.0 and 2.13.0 csrc/distributed/c10d/FlightRecorder.hpp, FlightRecorderDetail.hpp (`dump_json`),
distributed/distributed_c10d.py (`_world`). NCCL has its own recorder beside that of the other backends. Tested by
tests/cpu/test_torch_hangs.py.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from typing import Any

from raydebug.protocol import variables
from raydebug.protocol.records import MAX_ITEMS, CollectiveCall, CollectiveGroup

READERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
DEFAULT_ENTRIES = 2000
MAX_ENTRIES = 10_000  # a reading of 2,000 takes 50 ms, in which Python's lock is held
MAX_GROUPS = 50
KEPT = 10  # calls of each group: the oldest pending ones, and the newest completed ones
MAX_TEXT = 200  # characters of sizes and types

of_parent = False
"""Whether this process was forked from a rank: its groups and recorder entries are copies of its parent's."""


def note_fork() -> None:
    """Note in a child after a fork whether its parent is a rank."""
    global of_parent
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    of_parent = c10d is not None and c10d.is_initialized()


def own_rank() -> tuple[int, int] | None:
    """Return rank and world size of torch's default group; None without a group, or if it has a single rank."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or of_parent or not c10d.is_initialized() or c10d.get_world_size() < 2:
        return None
    return c10d.get_rank(), c10d.get_world_size()


def read_groups() -> list[CollectiveGroup]:
    """Return the process groups of this process with its last collectives in each; empty if torch records none."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    native: Any = sys.modules.get("torch._C._distributed_c10d")
    size = _size()
    if native is None or own_rank() is None or not 0 < size <= MAX_ENTRIES:
        return []
    recorders = [_entries(getattr(native, name)) for name in READERS if hasattr(native, name)]
    calls: dict[str, dict[tuple[str, int], CollectiveCall]] = {}
    descriptions: dict[str, str] = {}
    for entry in (entry for entries in recorders for entry in entries if not entry.get("is_p2p")):
        name, descriptions[name] = (str(part)[:MAX_TEXT] for part in entry["process_group"])
        call = _call(entry)
        calls.setdefault(name, {})[call["backend"], call["seq"]] = call
    return [
        {
            "name": str(name)[:MAX_TEXT],
            "description": descriptions.get(str(name), ""),
            "rank": c10d.get_rank(),
            "ranks": sorted(c10d._world.pg_group_ranks[group])[:MAX_ITEMS],
            "full": any(len(entries) >= size for entries in recorders),
            "calls": _newest(calls.get(str(name), {})),
        }
        for group, name in list(c10d._world.pg_names.items())[:MAX_GROUPS]
    ]


def _size() -> int:
    text = os.environ.get(variables.FLIGHT_RECORDER) or os.environ.get(variables.OLD_FLIGHT_RECORDER, "")
    return int(text) if text.isdigit() else DEFAULT_ENTRIES


def _entries(read: Any) -> list[dict[str, Any]]:
    with contextlib.suppress(RuntimeError, ValueError):  # torch was built without it
        return list(json.loads(read(True, False)).get("entries") or [])
    return []


def _call(entry: dict[str, Any]) -> CollectiveCall:
    """Convert an entry of the recorder. Its numbers are strings; a call of gloo never gets the state `completed`."""
    sizes = entry.get("input_sizes") or []
    backend, _, op = entry["profiling_name"].partition(":")
    return {
        "backend": backend[:MAX_TEXT],
        "seq": int(entry["collective_seq_id"]),
        "op": op[:MAX_TEXT],
        "sizes": ", ".join(str([int(side) for side in one]) for one in sizes)[:MAX_TEXT],
        "elements": sum(math.prod(int(side) for side in one) for one in sizes),
        "dtypes": ", ".join(sorted(set(entry.get("input_dtypes") or [])))[:MAX_TEXT],
        "done": bool(entry.get("retired")) or entry.get("state") == "completed",
    }


def _newest(calls: dict[tuple[str, int], CollectiveCall]) -> list[CollectiveCall]:
    kept = []
    for backend in sorted({backend for backend, _ in calls}):
        of_backend = [calls[key] for key in sorted(calls) if key[0] == backend]
        kept += [one for one in of_backend if one["done"]][-KEPT:] + [one for one in of_backend if not one["done"]][
            :KEPT
        ]
    return kept
