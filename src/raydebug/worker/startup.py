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
    from collections.abc import Callable
    from types import CodeType, TracebackType
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
_counts: dict[int, int] = {}
_counted: list[CodeType] = []


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
        frame = _getframe(1)
        code = frame.f_code
        # Where the calling instruction lies in memory: a code object, whose hash is slow, holds its instructions.
        place = id(code) + frame.f_lasti
        try:
            count = _counts[place] = _counts[place] + 1
        except KeyError:
            count = _counts[place] = 1
            _counted.append(code)  # its memory is not given to another one
        if count % every:
            return
    if debugger_is_ours():
        from raydebug.worker import sites

        sites.in_code(_getframe(1), rank, once, max, timeout, log)


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


def install() -> None:
    """Put the hooks in place: breakpoint(), uncaught errors, imports to watch, the profile of a training driver."""
    sys.breakpointhook = breakpoint_hook
    os.environ.setdefault("PYTHONBREAKPOINT", "raydebug.worker.unhooked.breakpoint_hook")  # for children without a hook
    raydebug.breakpoint = code_breakpoint
    from raydebug.worker import imports

    imports.watch()
    if _is_part_of_ray():
        _go_where_the_job_runs()
        return
    sys.excepthook = _watch_uncaught(sys.excepthook)
    if os.environ.get(names.PROFILE):
        from raydebug.worker import driver

        driver.lay_profile()


try:
    install()
except Exception as error:  # noqa: BLE001 - whatever goes wrong here must not harm the job
    from raydebug.worker import job_log

    job_log.write(f"no breakpoints in this process: {type(error).__name__}: {error}")
