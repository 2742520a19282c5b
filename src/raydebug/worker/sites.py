"""Breakpoints at run time: one site for each, that counts, asks its conditions, and pauses, says or passes on.

A breakpoint from outside is built into the source as a call to its site (worker/breaks.py); `raydebug.breakpoint()` in
the user's code finds its site by the place of the call. Counts are those of one process.
"""

from __future__ import annotations

import operator
import sys
from itertools import repeat

from raydebug.worker import imports, job_log, startup

TYPE_CHECKING = False  # as in startup.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt,
}  # fmt: skip


class Site:
    """One breakpoint in this process.

    Args:
        definition: "id", "where" and "policy" (pause/policy.py) of the breakpoint.
    """

    __slots__ = ("_every", "_misses", "_said", "armed", "definition", "stops")

    def __init__(self, definition: dict[str, Any]) -> None:
        self.definition = definition
        self.armed = True
        self.stops = 0
        self._every: int = (definition.get("policy") or {}).get("every", 1)
        self._misses = repeat(None, self._every - 1)
        self._said: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        # A function that travels by value (cloudpickle) takes the sites in its globals along.
        return arrived, (self.definition,)

    def at(self) -> None:
        """Pause the calling frame, if it is time."""
        for _ in self._misses:  # the way of a miss: nothing counts as fast as an iterator of C
            return
        frame = sys._getframe(1)
        if self._is_time() and self.is_wanted(frame):
            self.pause(frame)

    def is_due(self) -> bool:
        """Say whether a log point says something this time."""
        for _ in self._misses:
            return False
        return self._is_time() and self.is_wanted(sys._getframe(1))

    def _is_time(self) -> bool:
        """Begin the next round of misses, and say whether the breakpoint is still set; else there are only misses."""
        self._misses = repeat(None, self._every - 1) if self.armed else repeat(None)
        return self.armed

    def arm(self) -> None:
        """Let it stop again after it was removed; its count begins anew."""
        if not self.armed:
            self.armed, self._misses = True, repeat(None, self._every - 1)

    def say(self, text: str) -> None:
        """Write a log point's line to the job's log."""
        frame = sys._getframe(1)
        job_log.write(f"{frame.f_code.co_filename}:{frame.f_lineno} {text}")

    def pause(self, frame: FrameType) -> None:
        """Pause a frame."""
        from raydebug.worker import pause

        policy = self.definition.get("policy") or {}
        pause.pause_at(frame, kind="breakpoint", where=self.definition["where"], expires_s=policy.get("timeout_s"))

    def failed(self, error: BaseException | None) -> None:
        """Say once that the breakpoint's own expression failed; the job goes on."""
        self.say_once(f"{type(error).__name__}: {error}; it does not stop there (said once)")

    def say_once(self, text: str) -> None:
        """Write a line about this breakpoint to the job's log, the first time only."""
        if text not in self._said:
            self._said.add(text)
            job_log.write(f"breakpoint {self.definition['where']}: {text}")

    def is_wanted(self, frame: FrameType) -> bool:
        """Say whether rank, step and the count of stops let it stop now; a yes is counted."""
        policy = self.definition.get("policy") or {}
        if not startup.debugger_is_ours():
            return False
        if policy.get("rank") and not self._is_rank(policy["rank"]):
            return False
        if policy.get("step") and not self._is_step(policy["step"], frame):
            return False
        if policy.get("max") and self.stops >= policy["max"]:
            return False
        self.stops += 1
        return True

    def _is_rank(self, wanted: list[int]) -> bool:
        from raydebug.worker import records

        rank = records.rank()
        if rank is None:
            self.say_once("this process has no rank (RANK is not set), so rank= never holds here")
        return rank in wanted

    def _is_step(self, wanted: list[list[Any]], frame: FrameType) -> bool:
        from raydebug.worker import training_step

        step = training_step.step_of(frame)
        if step is None:
            self.say_once("the training step is not known here, so step never holds; use if= on a variable")
            return False
        return all(_COMPARE[compare](step, number) for compare, number in wanted)


_sites: dict[str, Site] = {}
_in_code: dict[tuple[CodeType, int], Site] = {}


def restore(definition: dict[str, Any]) -> Site:
    """Return this process's site of a breakpoint, making it the first time."""
    found = _sites.get(definition["id"])
    if found is None:
        found = _sites[definition["id"]] = Site(definition)
    return found


def arrived(definition: dict[str, Any]) -> Site:
    """Return the site for a function that has come from another process with the breakpoint built in."""
    imports.note_set([definition["id"]])
    return restore(definition)


def disarm(break_id: str) -> None:
    """Let a breakpoint that was removed stop nowhere any more."""
    if break_id in _sites:
        _sites[break_id].armed = False


def failed(definition: dict[str, Any]) -> None:
    """Note the error in flight as a failure of a breakpoint's own expression."""
    restore(definition).failed(sys.exc_info()[1])


def in_code(
    frame: FrameType, rank: Any, once: bool, maximum: int | None, timeout_s: float | None, log: str | None
) -> None:
    """Do what `raydebug.breakpoint()` asks at the frame that calls it."""
    key = (frame.f_code, frame.f_lasti)
    site = _in_code.get(key)
    if site is None:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        limit = 1 if once else maximum
        ranks = [] if rank is None else [rank] if isinstance(rank, int) else list(rank)
        given = {"rank": ranks, "max": limit, "timeout_s": timeout_s}
        site = Site({"id": where, "where": where, "policy": {name: value for name, value in given.items() if value}})
        _in_code[key] = site
    if not site.is_wanted(frame):
        return
    if log is None:
        site.pause(frame)
    else:
        job_log.write(f"{site.definition['where']} {log}")
