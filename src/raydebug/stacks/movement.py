"""Is it moving? What two looks at the same processes say of it, by lines, CPU time, calls and collectives. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raydebug.protocol import messages
from raydebug.protocol.listings import ListedStacks
from raydebug.protocol.records import ThreadStack
from raydebug.stacks.groups import active_thread
from raydebug.stacks.wait_kinds import KINDS, Verdict, matches, wait_of

TICK_S = 1.0  # the time is passed about so often
COMPUTES_S = 0.5  # CPU time between two looks
DATA_BYTES = 2**20  # written or read between two looks: more than a program says of itself
_OF_ENGINE = "/vllm/"  # its processes look for new work all the time
Look = Sequence[ListedStacks]


def moved(samples: Sequence[Look]) -> list[ListedStacks]:
    """Return the processes that were at another line in an earlier look, that compute, or whose collectives go on."""
    last = {process["instance"]: process for process in samples[-1]}
    changed = set()
    for before in (process for sample in samples[:-1] for process in sample):
        now = last.get(before["instance"])
        if now is None or before["state"] != now["state"]:  # py-spy describes the same place in other words
            continue
        if differs(active_thread(before), active_thread(now)) or _progress(before) != _progress(now):
            changed.add(now["instance"])
    return [process for process in samples[-1] if process["instance"] in changed]


def differs(before: ThreadStack, after: ThreadStack) -> bool:
    """Return whether a thread is at another line, or computes; some waits compute, too."""
    if before.get("frames") != after.get("frames"):
        return True
    return computes(before, after)


def computes(before: ThreadStack, after: ThreadStack) -> bool:
    """Return whether a thread has used CPU time, and not because of its wait."""
    kind, _ = next(matches(after), ("unknown", ""))
    return after.get("cpu_s", 0.0) - before.get("cpu_s", 0.0) > COMPUTES_S and not KINDS[kind].spins


def _progress(process: ListedStacks) -> dict[object, object]:
    """Return the collectives that a process has called and completed, by group."""
    return {
        (group.get("name"), *group.get("ranks", [])): [(call.get("seq"), call.get("done")) for call in group["calls"]]
        for group in process.get("collectives", [])
        if group.get("calls")
    }


def _pairs(before: Look, after: Look) -> Iterator[tuple[ListedStacks, ListedStacks]]:
    """Yield the processes of two looks, each as it was and as it is, that were seen in the same way."""
    earlier = {process["instance"]: process for process in before if process["threads"]}
    for now in after:
        then = earlier.get(now["instance"])
        if then is not None and then["state"] == now["state"] and now["threads"]:
            yield then, now


def any_moves(before: Look, after: Look, *, in_calls: bool) -> bool:
    """Return whether a process that waits for nothing is at another line than before, or computes.

    Args:
        before: the look before.
        after: the last look.
        in_calls: whether lines inside of one call count, in other processes than the driver.
    """
    return any(
        _is_at_work(then, now) and (_cpu_s(now) - _cpu_s(then) > COMPUTES_S or not _is_at_one_line(then, now))
        for then, now in _pairs(before, after)
        if in_calls or now["is_driver"] or (now["state"] == messages.ANSWERED and not now.get("calls"))
    )


def any_computes(samples: Sequence[Look]) -> bool:
    """Return whether a process computes at the same line in all looks: in native code, or in the garbage collector."""
    *looks, last = samples
    left = {now["instance"] for look in looks for then, now in _pairs(look, last) if not _is_at_one_line(then, now)}
    return any(
        _is_at_work(then, now) and _cpu_s(now) - _cpu_s(then) > COMPUTES_S
        for look in looks[-1:]
        for then, now in _pairs(look, last)
        if now["instance"] not in left
    )


def _is_at_work(then: ListedStacks, now: ListedStacks) -> bool:
    is_engine = any(_OF_ENGINE in frame.get("file", "") for frame in active_thread(now).get("frames", [])[:1])
    is_unknown = wait_of(now).kind == wait_of(then).kind == "unknown"
    return not is_engine and (is_unknown or computes(active_thread(then), active_thread(now)))


def _is_at_one_line(then: ListedStacks, now: ListedStacks) -> bool:
    return active_thread(then).get("frames") == active_thread(now).get("frames")


def _cpu_s(process: ListedStacks) -> float:
    return active_thread(process).get("cpu_s", process.get("cpu_s", 0.0))


def has_worked(before: Look, after: Look, apart_s: float) -> bool:
    """Return whether a process has begun another call of the user's code, has moved data, or its children computed."""
    return any(
        now.get("children_cpu_s", 0.0) - then.get("children_cpu_s", 0.0) > COMPUTES_S
        or now.get("io_bytes", 0) - then.get("io_bytes", 0) > DATA_BYTES
        or _has_new_call(then, now, apart_s)
        for then, now in _pairs(before, after)
        if now["state"] == messages.ANSWERED
    )


def _has_new_call(then: ListedStacks, now: ListedStacks, apart_s: float) -> bool:
    """Return whether a process is in a call that nobody saw before the last look: its age begins with the first one."""
    active = now["threads"][0]["name"]
    ages_s = {call["thread"]: call["age_s"] for call in then.get("calls", [])}
    return any(
        call["age_s"] <= ages_s.get(call["thread"], 0.0) or call["age_s"] < apart_s - TICK_S
        for call in now.get("calls", [])
        if call["thread"] == active
    )


def ends_in_new_call(verdict: Verdict, apart_s: float) -> bool:
    """Return whether the thread that all wait for, the active one of its process or not, is in such a call."""
    age_s = verdict["call_age_s"]
    return verdict["kind"] == "moving" and age_s is not None and age_s <= max(0.0, apart_s - TICK_S)
