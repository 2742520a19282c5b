"""Which lines allocated memory that is still there: memray records for some seconds, in this process.

Source: memray 1.20.0 (Apache-2.0): `Tracker` may be entered by any thread and records all; one at a time can be active.
It sees what C code allocates, torch too, which tracemalloc does not.
"""

from __future__ import annotations

import collections
import importlib.util
import os
import shutil
import sys
import tempfile
import threading
from typing import Any

from raydebug import worker
from raydebug.protocol.memory import Allocations, AllocationsBody, Line
from raydebug.worker.census import in_thread
from raydebug.worker.frames import is_program

MAX_S, MAX_LINES = 600.0, 20
NOTHING: Allocations = {"state": "failed", "cause": "nothing was recorded"}
_last = NOTHING
_now = threading.Lock()


def allocations(body: AllocationsBody) -> Allocations:
    """Start to record for some seconds, or return the result of the last recording."""
    global _last
    if "seconds" not in body:
        return _last
    try:
        is_there = importlib.util.find_spec("memray") is not None
    except ValueError:  # sys.modules says that it cannot be imported
        is_there = False
    if not is_there:
        return {"state": "missing", "python": sys.executable}
    if not _now.acquire(blocking=False):
        return {"state": "failed", "cause": "a recording is going on already"}
    _last = {"state": "recording"}
    seconds = max(0.0, min(body["seconds"], MAX_S))
    try:
        in_thread(lambda: _record(seconds))
    except RuntimeError as error:  # no more threads
        _now.release()
        _last = {"state": "failed", "cause": str(error)}
    return _last


def _record(seconds: float) -> None:
    global _last
    try:
        _last = {"state": "done", "lines": _lines_of(seconds)}
    except Exception as error:  # noqa: BLE001 - no disk; memray is on already: the user's own run of it stays
        _last = {"state": "failed", "cause": f"{type(error).__name__}: {error}"[:1000]}
    finally:
        _now.release()


def _lines_of(seconds: float) -> list[Line]:
    with worker.fork_guard:
        import memray
    folder = tempfile.mkdtemp(prefix="raydebug-")
    try:
        path = os.path.join(folder, "allocations.bin")
        with memray.Tracker(path, file_format=memray.FileFormat.AGGREGATED_ALLOCATIONS):
            threading.Event().wait(seconds)
        return _lines(memray.FileReader(path).get_leaked_allocation_records(merge_threads=True))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lines(records: Any) -> list[Line]:
    """Return the allocations by the innermost line of the user's program, the largest first."""
    found: dict[str, Line] = collections.defaultdict(lambda: {"count": 0, "bytes": 0})
    for record in records:
        trace = record.stack_trace()  # innermost first: (function, file, line)
        own = next((one for one in trace if is_program(one[1])), None)
        shown = own or (trace[0] if trace else None)
        name = "(no Python)" if shown is None else f"{shown[1]}:{shown[2]} {shown[0]}"
        found[name]["count"] += record.n_allocations
        found[name]["bytes"] += record.size
    rows = sorted(found.items(), key=lambda one: -one[1]["bytes"])[:MAX_LINES]
    return [{"line": name[:1000], **row} for name, row in rows]


def _become_another_process() -> None:
    global _now, _last
    _now, _last = threading.Lock(), NOTHING


os.register_at_fork(after_in_child=_become_another_process)
