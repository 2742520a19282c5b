"""Breakpoints at run time: each has a site, which counts calls, checks the conditions, and pauses or logs.

A breakpoint from outside is compiled into the source as a call to its site (breakpoints/compile.py);
`raydebug.breakpoint()` in the user's code finds its site by the calling instruction. Counts are those of one process.
"""

from __future__ import annotations

import operator
import sys
from itertools import repeat

from raydebug import worker

TYPE_CHECKING = False  # as in startup.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType
    from typing import Any

    from raydebug.protocol.records import BreakpointSpec

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt,
}  # fmt: skip


class Site:
    """One breakpoint in this process, by its "id", "where" and "policy"."""

    __slots__ = ("_every", "_logged", "armed", "misses", "spec", "stops")

    def __init__(self, spec: BreakpointSpec) -> None:
        self.spec = spec
        self.armed = True
        self.stops = 0
        self._every = (spec.get("policy") or {}).get("every", 1)
        # Counts the calls of `every=N`: one item for each call to skip. Nothing in Python counts faster.
        self.misses = repeat(None, self._every - 1)
        self._logged: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        # A function that is pickled by value (cloudpickle) takes the sites in its globals along.
        return arrived, (self.spec,)

    def at(self) -> None:
        """Pause the calling frame if every condition holds."""
        for _ in self.misses:
            return
        frame = sys._getframe(1)
        if self.is_time(self._every) and self.is_wanted(frame):
            self.pause(frame)

    def is_due(self) -> bool:
        """Return whether a log point logs this time."""
        for _ in self.misses:
            return False
        return self.is_time(self._every) and self.is_wanted(sys._getframe(1))

    def is_time(self, every: int) -> bool:
        """Begin the next round of calls to skip; False if the breakpoint was removed: then it skips all of them."""
        self.misses = repeat(None, every - 1) if self.armed else repeat(None)
        return self.armed

    def arm(self) -> None:
        """Set it again after its removal; its count begins anew."""
        if not self.armed:
            self.armed, self.misses = True, repeat(None, self._every - 1)

    def say(self, text: str) -> None:
        """Write a log point's line to the job's log."""
        frame = sys._getframe(1)
        worker.log(f"{frame.f_code.co_filename}:{frame.f_lineno} {text}")

    def pause(self, frame: FrameType) -> None:
        """Pause a frame."""
        with worker.fork_guard:
            from raydebug.worker import pause
        policy = self.spec.get("policy") or {}
        pause.pause_at(frame, kind="breakpoint", where=self.spec["where"], expires_s=policy.get("timeout_s"))

    def failed(self, error: BaseException | None) -> None:
        """Log once that the breakpoint's own expression failed; the job is not affected."""
        self._log_once(f"{type(error).__name__}: {worker.text_of(error)}; it does not stop there (said once)")

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            worker.log(f"breakpoint {self.spec['where']}: {text}")

    def is_wanted(self, frame: FrameType) -> bool:
        """Return whether mode, rank, step and the number of stops allow a stop now; a yes is counted."""
        policy = self.spec.get("policy") or {}
        if not worker.debugger_is_ours():
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
        with worker.fork_guard:
            from raydebug.worker import records
        rank = records.rank()
        if rank is None:
            self._log_once("this process has no rank (RANK is not set), so rank= never holds here")
        return rank in wanted

    def _is_step(self, wanted: list[list[Any]], frame: FrameType) -> bool:
        with worker.fork_guard:
            from raydebug.worker import training_step
        step = training_step.step_of(frame)
        if step is None:
            self._log_once("the training step is not known here, so step never holds; use if= on a variable")
            return False
        return all(_COMPARE[compare](step, number) for compare, number in wanted)


_sites: dict[str, Site] = {}
loaded: set[str] = set()
"""Ids of breakpoints compiled into loaded code."""
on_set: Callable[[list[str]], None] = lambda ids: None  # noqa: E731
"""Called with the ids of breakpoints that have just been compiled into loaded code."""


def note_set(ids: list[str]) -> None:
    """Note that these breakpoints are compiled into loaded code, and report it."""
    loaded.update(ids)
    on_set(ids)


def site_of(spec: BreakpointSpec) -> Site:
    """Return this process's site of a breakpoint from outside; the first call creates it."""
    found = _sites.get(spec["id"])
    if found is None:
        found = _sites[spec["id"]] = Site(spec)
    return found


def arrived(spec: BreakpointSpec) -> Site:
    """Return the site for a function that was unpickled with the breakpoint compiled in."""
    note_set([spec["id"]])
    return site_of(spec)


def disarm(break_id: str) -> None:
    """Let a removed breakpoint stop nowhere."""
    if break_id in _sites:
        _sites[break_id].armed = False


def failed(spec: BreakpointSpec) -> None:
    """Log the exception that is being handled as a failure of a breakpoint's own expression."""
    site_of(spec).failed(sys.exc_info()[1])


# raydebug.breakpoint() in the user's code

# A miss of `every=N` must not pay for finding its site (300 ns). So while a single call site uses an N, its `misses`
# are shared with `raydebug.breakpoint()`, which takes from them without looking at the caller. The first LOOKED_AT
# calls of each round are looked at, to notice a second call site with the same N.
LOOKED_AT = 16
_in_code: dict[int, Site] = {}  # by calling instruction
_codes: list[CodeType] = []  # kept alive: _in_code identifies them by their address
_only: dict[int, Site | None] = {}  # by N: the only call site that uses it; None when there are several


def call_in_code(
    frame: FrameType,
    skips: dict[int, Iterator[None]],
    every: int,
    rank: Any,
    once: bool,
    maximum: int | None,
    timeout_s: float | None,
    log: str | None,
) -> None:
    """Do what `raydebug.breakpoint()` asks for (raydebug/__init__.py) in the frame that calls it.

    `skips` has, by N, the calls that `raydebug.breakpoint()` skips itself.
    """
    place = id(frame.f_code) + frame.f_lasti  # the address of the instruction; hashing a code object is slow
    site = _in_code.get(place)
    if site is None:
        limit = 1 if once else maximum
        ranks = [] if rank is None else [rank] if isinstance(rank, int) else list(rank)
        site = _in_code[place] = _make_site(frame, every, ranks, limit, timeout_s)
    if every > 1 and not _is_time(site, every, skips):
        return
    if not site.is_wanted(frame):
        return
    if log is None:
        site.pause(frame)
    else:
        worker.log(f"{site.spec['where']} {log}")


def _make_site(frame: FrameType, every: int, ranks: list[int], maximum: int | None, timeout_s: float | None) -> Site:
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    spec: BreakpointSpec = {"id": where, "where": where, "policy": {"every": every, "rank": ranks}}
    if maximum:
        spec["policy"]["max"] = maximum
    if timeout_s:
        spec["policy"]["timeout_s"] = timeout_s
    _codes.append(frame.f_code)
    return Site(spec)


def _is_time(site: Site, every: int, skips: dict[int, Iterator[None]]) -> bool:
    """Count a call of a site, and say whether it is the N-th since the last one."""
    only = _only.setdefault(every, site)
    if only is not site:
        _only[every] = None
    skips.pop(every, None)  # its round has ended, or another site has come
    for _ in site.misses:
        if only is site and every - 1 - operator.length_hint(site.misses) == LOOKED_AT:
            skips[every] = site.misses
        return False
    return site.is_time(every)
