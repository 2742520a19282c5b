"""Runs in every Python below the cluster (by raydebug.pth): puts the hooks in place and returns.

It costs every interpreter start, so it imports nothing that the interpreter has not loaded already.
"""

from __future__ import annotations

import os
import sys

import raydebug
from raydebug.worker import names

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost 17 ms of imports
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType, TracebackType
    from typing import Any

# Ray reads the same variables and defaults: ray/util/rpdb.py:298, 338 (2.60.0)
RAY_DEBUG = "RAY_DEBUG"
RAY_DEBUG_POST_MORTEM = "RAY_DEBUG_POST_MORTEM"


def debugger_is_ours() -> bool:
    """Say whether breakpoints of this process go to the gateway (not off, not Ray's legacy debugger)."""
    return os.environ.get(RAY_DEBUG, "1") == "1"


def post_mortem_is_on() -> bool:
    """Say whether this process pauses when an exception leaves a task or ends the program."""
    return debugger_is_ours() and os.environ.get(RAY_DEBUG_POST_MORTEM, "0") == "1"


def breakpoint_hook(*_args: Any, **_kwargs: Any) -> None:
    """Stand in for `breakpoint()`: pause the calling frame."""
    if os.environ.get(RAY_DEBUG, "1") == "0":
        return
    if not debugger_is_ours():
        _ray_legacy_hook()
        return
    from raydebug.worker import pause

    pause.pause_at(sys._getframe(1), kind="breakpoint")


_getframe = sys._getframe


def code_breakpoint(
    when: Any = True,  # positions with defaults: Python calls nothing faster
    every: int = 1,
    rank: Any = None,
    once: bool = False,
    max: int | None = None,  # noqa: A002 - the word of --break
    timeout: float | None = None,
    log: str | None = None,
) -> None:
    """Stand in for `raydebug.breakpoint()` below a cluster."""
    if not when:
        return
    if every > 1:
        try:
            next(_skips[every])
            return  # the way of a miss: it costs two look-ups and a call
        except (KeyError, StopIteration):
            if not _is_time(every, _getframe(1)):
                return
    if debugger_is_ours():
        from raydebug.worker import sites

        sites.in_code(_getframe(1), rank, once, max, timeout, log)


# Each place has its own count, and to ask which place calls costs more than all the rest of a miss. So of each round of
# N the first calls are looked at; the others are passed over by a C iterator, as long as one place asks for that N.
LOOKED_AT = 16
_skips: dict[int, Iterator[None]] = {}  # by N: ends when the next call is the N-th
_only: dict[int, int] = {}  # by N: the one place that asks for it; 0 when there are several
_counts: dict[int, int] = {}  # by place, since its last N-th call
_counted: list[CodeType] = []


def _is_time(every: int, frame: FrameType) -> bool:
    """Count a call from this frame, and say whether it is the N-th of its place."""
    code = frame.f_code
    place = id(code) + frame.f_lasti  # where the instruction lies; the hash of a code object is slow
    skipped = _skips.pop(every, None) is not None
    if place not in _counts:
        _counts[place] = 0
        _counted.append(code)  # its memory is not given to another one
    is_only = _only.setdefault(every, place) == place
    if not is_only:
        _only[every] = 0
    count = every if skipped and is_only else _counts[place] + 1
    is_time = count >= every
    _counts[place] = count = 0 if is_time else count
    if is_only and count == LOOKED_AT:
        from itertools import repeat

        _skips[every] = repeat(None, every - 1 - count)
    return is_time


def _ray_legacy_hook() -> None:
    # What Ray itself puts into PYTHONBREAKPOINT for workers (ray/_private/worker.py:2646, 2.60.0).
    rpdb = sys.modules.get("ray.util.rpdb")
    ray_worker = sys.modules.get("ray._private.worker")
    if rpdb is not None and ray_worker is not None and ray_worker.global_worker.connected:
        if ray_worker.global_worker.mode == ray_worker.WORKER_MODE:
            rpdb.set_trace()
        else:
            rpdb._driver_set_trace()
    else:
        from raydebug.worker import job_log

        job_log.write("breakpoint() skipped: Ray's legacy debugger needs a process connected to Ray")


def _watch_uncaught(previous: Callable[..., Any]) -> Callable[..., Any]:
    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if post_mortem_is_on():
            from raydebug.worker import pause

            pause.pause_on_error(kind, error, trace)
        previous(kind, error, trace)

    return excepthook


def _is_part_of_ray() -> bool:
    # Ray's own daemons (dashboard, agents, monitors) run below the cluster too; they are not the user's program.
    arguments = getattr(sys, "orig_argv", [])
    return any("/ray/dashboard/" in a or "/ray/_private/" in a or "/ray/autoscaler/" in a for a in arguments[1:4])


def _go_where_the_job_runs() -> None:
    # Under a plain ray.init() workers start in the driver's folder; on a cluster that runs already they do not.
    folder = os.environ.get(names.WORKING_DIR)
    if folder and os.getcwd() == names.CLUSTER_DIR and os.path.isdir(folder):
        os.chdir(folder)


def _is_warm() -> bool:
    return "raydebug.zygotes.become" in sys.modules  # this is a fork of a zygote: all is imported


def install() -> None:
    """Put the hooks in place: breakpoint(), uncaught errors, imports to watch, the profile of a training driver."""
    sys.breakpointhook = breakpoint_hook
    os.environ.setdefault("PYTHONBREAKPOINT", "raydebug.worker.unhooked.breakpoint_hook")  # for children without a hook
    raydebug.breakpoint = code_breakpoint
    from raydebug.worker import imports

    imports.watch()
    if _is_warm():
        imports.catch_up()
    if _is_part_of_ray():
        _go_where_the_job_runs()
        return
    sys.excepthook = _watch_uncaught(sys.excepthook)
    if os.environ.get(names.PROFILE):
        from raydebug.worker import driver

        driver.lay_profile()


def _hand_over() -> None:
    from raydebug.zygotes import ask

    ask.hand_over()


if names.WARM in os.environ and not _is_warm():
    _hand_over()
try:
    install()
except Exception as error:  # noqa: BLE001 - whatever goes wrong here must not harm the job
    from raydebug.worker import job_log

    job_log.write(f"no breakpoints in this process: {type(error).__name__}: {error}")
