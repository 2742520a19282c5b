"""The stacks of processes as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from raydebug.protocol.listings import ListedStacks
from raydebug.protocol.messages import ANSWERED
from raydebug.protocol.names import name_process, name_ranks
from raydebug.protocol.records import MAX_ITEMS, StackFrame, ThreadStack
from raydebug.stacks.collect import is_python
from raydebug.stacks.groups import StackGroup, place, users_frames

SHOWN_FRAMES = 5
SHOWN_NATIVE = 12


def group_lines(groups: Sequence[StackGroup], processes: Sequence[ListedStacks]) -> Iterator[str]:
    """Yield which processes are in each group, and the frames that say where they are."""
    native = {process["instance"]: process.get("native", []) for process in processes}
    for group in groups:
        pids = ", ".join(map(str, group["pids"][:8]))
        who = name_ranks(group["ranks"]) if group["ranks"] else f"pid {pids}"
        count = f"  {len(group['pids'])} processes" if len(group["pids"]) > 1 else ""
        mark = "  differs from the others" if group["outlier"] else ""
        yield f"{group['role']}  {who}{count}{mark}"
        yield from _native_lines(native.get(group["instances"][0], []), group["frames"])
        yield from _frame_lines(group["frames"], SHOWN_FRAMES)


def whole_lines(processes: Sequence[ListedStacks]) -> Iterator[str]:
    """Yield all threads of all processes with all of their frames."""
    for process in processes:
        yield _name(process)
        for thread in process["threads"]:
            yield f"  thread {thread['name']}"
            native = [one for one in process.get("native", []) if one["name"] == thread["name"]]
            yield from _native_lines(native, thread["frames"])
            yield from _frame_lines(thread.get("frames", []), len(thread.get("frames", [])))


def silent_lines(processes: Sequence[ListedStacks]) -> Iterator[str]:
    """Yield the processes that did not answer."""
    for process in processes:
        if process["state"] != ANSWERED:
            yield f"{process['state']}  {_name(process)}"


def left_out_lines(processes: Sequence[ListedStacks]) -> Iterator[str]:
    """Yield the processes with more threads and tasks than are listed, or that wait for more objects."""
    for process in processes:
        if any(len(thread.get("objects", [])) >= MAX_ITEMS for thread in process["threads"]):
            yield f"{_name(process)} waits for {MAX_ITEMS:,} objects or more; the first {MAX_ITEMS:,} are followed"
        if count := process.get("left_out", 0):
            yield f"{_name(process)}: {count} more threads and tasks are not listed; of equal stacks some are"


def _native_lines(threads: Sequence[ThreadStack], frames: Sequence[StackFrame]) -> Iterator[str]:
    """Yield the native frames that a Python stack has called: those of the thread with the same innermost frame."""

    def at(frame: StackFrame) -> tuple[object, object]:
        return frame.get("file"), frame.get("function")

    for thread in threads:
        python = [frame for frame in thread["frames"] if is_python(frame["file"])]
        if python and frames and at(python[0]) == at(frames[0]):
            for one in thread["frames"][: min(thread["frames"].index(python[0]), SHOWN_NATIVE)]:
                yield f"    {one['function']} in {Path(one['file']).name}"
            return


def _frame_lines(frames: Sequence[StackFrame], count: int) -> Iterator[str]:
    own = users_frames(frames)
    shown = frames[:count]
    if own and count < len(frames):  # the frames between the innermost and the user's belong to libraries
        shown = [*(frames[:1] if frames[0] not in own else []), *own[: count - 1]]
    for frame in shown:
        source = frame.get("text", "") if frame in own else ""
        yield f"    {place(frame)}" + (f"    {source[:80]}" if source else "")
        yield from (f"        {text}" for text in frame.get("locals", ()))


def _name(process: ListedStacks) -> str:
    return f"{name_process(process)}  pid {process['pid']} on {process['ip']}"
