"""Read the groups of `ray.util.collective`, which torch's flight recorder does not know: verl's weight sync uses them.

A group counts nothing, so the only call that is known of it is the one that a thread is in now.

Source: ray 2.41.0 and 2.60.0 util/collective/collective.py (`_group_mgr`), collective_group/base_collective_group.py.
"""

from __future__ import annotations

import contextlib
import sys
from types import FrameType
from typing import Any

from raydebug.protocol.records import MAX_ITEMS, RAY_COLLECTIVE, CollectiveCall, CollectiveGroup
from raydebug.worker.frame_locals import locals_of

SOURCE = "/ray/util/collective/collective.py"
MAX_GROUPS, MAX_TEXT = 50, 200


def read_groups(stacks: list[list[FrameType]]) -> list[CollectiveGroup]:
    """Return the groups of this process, each with the call that one of these stacks is in.

    Args:
        stacks: the frames of each thread.
    """
    module: Any = sys.modules.get("ray.util.collective.collective")
    if module is None:
        return []
    calls: dict[str, CollectiveCall] = {}
    for frame in (frame for frames in stacks for frame in frames):
        if frame.f_code.co_filename.endswith(SOURCE) and type(name := locals_of(frame).get("group_name")) is str:
            with contextlib.suppress(Exception):
                calls[name] = _call(frame)
    found: list[CollectiveGroup] = []
    for name, group in list(module._group_mgr._name_group_map.items())[:MAX_GROUPS]:
        rank, ranks = int(group._rank), [*range(int(group._world_size))][:MAX_ITEMS]
        open_calls = [calls[name]] if name in calls else []
        about: CollectiveGroup = {"name": str(name)[:MAX_TEXT], "description": RAY_COLLECTIVE}
        found.append({**about, "rank": rank, "ranks": ranks, "calls": open_calls})
    return found


def _call(frame: FrameType) -> CollectiveCall:
    call: CollectiveCall = {"backend": "", "seq": 1, "op": frame.f_code.co_name[:MAX_TEXT], "done": False}
    tensor: Any = locals_of(frame).get("tensor")
    if type(tensor).__module__ in ("torch", "cupy", "numpy"):
        call["sizes"], call["dtypes"] = str(list(tensor.shape))[:MAX_TEXT], str(tensor.dtype)[:MAX_TEXT]
        call["elements"] = int(tensor.nelement() if hasattr(tensor, "nelement") else tensor.size)
    return call
