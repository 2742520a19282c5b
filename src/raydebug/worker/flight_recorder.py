"""Read torch's flight recorder: the last collectives that this process called, in each of its process groups.

The control channel's thread reads it while the main thread is stuck in a collective. It asks for the JSON form without
stacks: with them the first reading takes 12 s. The time of a reading grows with the size of the recorder.

`time_created_ns` is the time of the call, for gloo and NCCL. With NCCL a call returns before the collective begins: the
time shows when the rank's Python came there, not its GPU.

Source: torch 2.11.0 and 2.13.0 csrc/distributed/c10d/FlightRecorder.hpp, FlightRecorderDetail.hpp (`dump_json`),
distributed/distributed_c10d.py (`_world`). NCCL has its own recorder beside that of the other backends. Tested by
tests/cpu/test_torch_hangs.py.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from raydebug.protocol import variables
from raydebug.protocol.questions import CallTimes, CollectiveTimes, TimesBody
from raydebug.protocol.records import MAX_ITEMS, RAY_COLLECTIVE, CollectiveCall, CollectiveGroup
from raydebug.worker.frame_locals import locals_of

RAY_SOURCE = "/ray/util/collective/collective.py"
READERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
DEFAULT_ENTRIES = 2000
MAX_ENTRIES = 10_000  # a reading of 2,000 takes 50 ms, in which Python's lock is held
MAX_GROUPS = 50
KEPT = 10  # calls of each group: the oldest pending ones, and the newest completed ones
MOST_TIMES = 500  # of all groups, the newest: 25 kB of an answer
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
    if own_rank() is None:
        return []
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    size, recorders = _size(), _read_recorders()
    if not recorders:
        return []
    calls: dict[str, dict[tuple[str, int], CollectiveCall]] = {}
    descriptions: dict[str, str] = {}
    for entry in (entry for entries in recorders for entry in entries if not entry.get("is_p2p")):
        name, descriptions[name] = (str(part)[:MAX_TEXT] for part in entry["process_group"])
        call = _call(entry)
        calls.setdefault(name, {})[call["backend"], call["seq"]] = call
    groups: list[CollectiveGroup] = []
    for group, name in list(c10d._world.pg_names.items())[:MAX_GROUPS]:
        # By the group's own count: OpenRLHF's trainer and engines share a group.
        ranks = {of_group: rank for rank, of_group in c10d._world.pg_group_ranks[group].items()}
        groups.append(
            {
                "name": str(name)[:MAX_TEXT],
                "description": descriptions.get(str(name), ""),
                "rank": int(ranks.get(getattr(group, "rank", c10d.get_rank)(), c10d.get_rank())),
                "ranks": sorted(c10d._world.pg_group_ranks[group])[:MAX_ITEMS],
                "full": any(len(entries) >= size for entries in recorders),
                "calls": _newest(calls.get(str(name), {})),
            }
        )
    return groups


def times_for(body: TimesBody) -> CollectiveTimes:
    """Return when this rank has called its last collectives, and what it and its node have used so far."""
    own = own_rank()
    if own is None:
        return {}
    now_ns = time.time_ns()
    answer: CollectiveTimes = {
        "rank": own[0],
        "groups": _times(now_ns - int(body["last_s"] * 1e9)) if body.get("last_s") else [],
        "now_ns": now_ns,
        "cpu_s": time.process_time(),
        "collections": gc.get_stats()[2]["collections"],
        "load": os.getloadavg()[0],
        "cpus": os.cpu_count() or 1,
    }
    with contextlib.suppress(OSError, StopIteration):  # proc_pid_io(5); some containers forbid it
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
        answer["disk_bytes"] = next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))
    return answer


def _times(since_ns: int) -> list[CallTimes]:
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    members = {str(name): sorted(world.pg_group_ranks[group]) for group, name in world.pg_names.items()}
    calls = []
    for entry in (entry for entries in _read_recorders() for entry in entries if not entry.get("is_p2p")):
        at_ns, name = int(entry["time_created_ns"]), entry["process_group"][0]
        if at_ns >= since_ns and name in members:
            calls.append((at_ns, name, int(entry["collective_seq_id"]), entry["profiling_name"]))
    found: dict[tuple[str, str], CallTimes] = {}
    for at_ns, name, seq, profiled in sorted(calls)[-MOST_TIMES:]:
        (backend, _, op), ranks = profiled.partition(":"), members[name][:MAX_ITEMS]
        times = found.get((name, backend))
        if times is None and len(ranks) > 1 and len(found) < MAX_GROUPS:
            about: CallTimes = {"name": name[:MAX_TEXT], "backend": backend[:MAX_TEXT], "ranks": ranks}
            times = found[name, backend] = {**about, "seqs": [], "ops": [], "at_ns": []}
        if times is not None:
            times["seqs"].append(seq)
            times["ops"].append(op[:MAX_TEXT])
            times["at_ns"].append(at_ns)
    return [*found.values()]


def _read_recorders() -> list[list[dict[str, Any]]]:
    """Return the entries of each recorder; none where torch records nothing, or too much to read."""
    native: Any = sys.modules.get("torch._C._distributed_c10d")
    if native is None or not 0 < _size() <= MAX_ENTRIES:
        return []
    return [_entries(getattr(native, name)) for name in READERS if hasattr(native, name)]


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
        "sizes": ", ".join(str([int(side) for side in shape]) for shape in sizes)[:MAX_TEXT],
        "elements": sum(math.prod(int(side) for side in shape) for shape in sizes),
        "dtypes": ", ".join(sorted(set(entry.get("input_dtypes") or [])))[:MAX_TEXT],
        "done": bool(entry.get("retired")) or entry.get("state") == "completed",
    }


def _newest(calls: dict[tuple[str, int], CollectiveCall]) -> list[CollectiveCall]:
    kept: list[CollectiveCall] = []
    for backend in sorted({backend for backend, _ in calls}):
        of_backend = [calls[key] for key in sorted(calls) if key[0] == backend]
        kept += [call for call in of_backend if call["done"]][-KEPT:]
        kept += [call for call in of_backend if not call["done"]][:KEPT]
    return kept


def read_ray_groups(stacks: list[list[FrameType]]) -> list[CollectiveGroup]:
    """Return the groups of `ray.util.collective`, as verl's weight sync uses them; only open calls are known.

    Source: ray 2.41.0 and 2.60.0 util/collective/collective.py (`_group_mgr`), base_collective_group.py beside it.

    Args:
        stacks: the frames of each thread.
    """
    module: Any = sys.modules.get("ray.util.collective.collective")
    if module is None:
        return []
    calls: dict[str, CollectiveCall] = {}
    for frame in (frame for frames in stacks for frame in frames):
        if frame.f_code.co_filename.endswith(RAY_SOURCE) and type(name := locals_of(frame).get("group_name")) is str:
            with contextlib.suppress(Exception):
                calls[name] = _ray_call(frame)
    found: list[CollectiveGroup] = []
    for name, group in list(module._group_mgr._name_group_map.items())[:MAX_GROUPS]:
        rank, ranks = int(group._rank), [*range(int(group._world_size))][:MAX_ITEMS]
        open_calls = [calls[name]] if name in calls else []
        about: CollectiveGroup = {"name": str(name)[:MAX_TEXT], "description": RAY_COLLECTIVE}
        found.append({**about, "rank": rank, "ranks": ranks, "calls": open_calls})
    return found


def _ray_call(frame: FrameType) -> CollectiveCall:
    call: CollectiveCall = {"backend": "", "seq": 1, "op": frame.f_code.co_name[:MAX_TEXT], "done": False}
    tensor: Any = locals_of(frame).get("tensor")
    if type(tensor).__module__ in ("torch", "cupy", "numpy"):
        call["sizes"], call["dtypes"] = str(list(tensor.shape))[:MAX_TEXT], str(tensor.dtype)[:MAX_TEXT]
        call["elements"] = int(tensor.nelement() if hasattr(tensor, "nelement") else tensor.size)
    return call
