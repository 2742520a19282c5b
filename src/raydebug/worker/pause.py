"""Pauses a frame: dial the gateway, tell it what stopped, wait in pydevd until a debugger lets go.

Sources (debugpy 1.8.22, private names, held by tests/ray/test_contracts.py): `PyDB.set_suspend`,
`PyDB.do_wait_suspend`, `PyDB.stop_on_unhandled_exception`, `BaseSchema._translate_id_to_dap`;
Ray 2.60.0 `Worker.worker_paused_by_debugger` (_private/worker.py:666).
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

from raydebug.worker import dial, job_log, records, requirement, tracing

_pausing = threading.local()


def pause_at(
    frame: FrameType,
    *,
    kind: str,
    where: str | None = None,
    expires_s: float | None = None,
    request: str | None = None,
    refuse: Callable[[str], None] = lambda _: None,
) -> bool:
    """Pause at a frame; says why in the log and returns at once where that cannot be.

    Args:
        frame: the user's frame.
        kind: `breakpoint` or `requested`.
        where: the breakpoint from outside that stops here, as the user wrote it.
        expires_s: after how many seconds without a debugger it goes on; None for the gateway's own limit.
        request: whose question it is that stops here.
        refuse: is told as well why it does not pause.

    Returns:
        Whether it has paused.
    """
    with _guard(refuse) as may_pause:
        if not may_pause:
            return False
        debugger = dial.connected_debugger()
        _watch_stops(debugger)
        thread = threading.current_thread()
        info = debugger.set_additional_thread_info(thread)
        from _pydevd_bundle.pydevd_comm_constants import CMD_SET_BREAK

        with tracing.not_traced(info):
            record = records.describe_pause(frame, kind, where=where, expires_s=expires_s)
            _announce(debugger, thread, {**record, "request": request})
            debugger.set_suspend(thread, CMD_SET_BREAK)
            debugger.do_wait_suspend(thread, frame, "line", None)
        _trace_only_while_needed(debugger, info)
        return True
    return False


def pause_on_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> bool:
    """Pause at the frame that raised; a cancelled or merely passed-on error of another task is let through.

    Returns:
        Whether it has paused.
    """
    if trace is None or not issubclass(kind, Exception) or _was_shown_elsewhere(error):
        return False
    with _guard() as may_pause:
        if not may_pause:
            return False
        debugger = dial.connected_debugger()
        _watch_stops(debugger)
        thread = threading.current_thread()
        info = debugger.set_additional_thread_info(thread)
        with tracing.not_traced(info):
            _announce(debugger, thread, records.describe_pause(trace.tb_frame, "post-mortem", error=error, trace=trace))
            debugger.stop_on_unhandled_exception(debugger, thread, info, (kind, error, trace))
        _trace_only_while_needed(debugger, info)
        return True
    return False


def break_off(thread: threading.Thread, why: str) -> None:
    """Let a paused thread of this process run on, and tell the gateway why; nothing where it is not paused."""
    import pydevd

    debugger = pydevd.get_global_debugger()
    if debugger is None or not dial.standing_of(debugger).stands(_dap_id(thread)):
        return
    from _pydevd_bundle import pydevd_thread_lifecycle

    dial.standing_of(debugger).broken_off(_dap_id(thread), why)
    pydevd_thread_lifecycle.internal_run_thread(thread, debugger.set_additional_thread_info)


@contextlib.contextmanager
def _guard(refuse: Callable[[str], None] = lambda _: None) -> Iterator[bool]:
    """Keep a failure of ours away from the job, and a pause from starting inside a pause of the same thread."""
    if getattr(_pausing, "now", False):
        refuse("its thread is paused already")
        yield False
        return
    _pausing.now = True
    dial.about_to_pause.add(threading.get_ident())
    try:
        yield True
    except dial.NoGateway as error:
        _log(f"not paused: {error}")
        refuse(str(error))
    except requirement.NoDebugger as error:
        _say_once(f"not paused: {error}")
        refuse(str(error))
    except Exception as error:  # noqa: BLE001 - the job goes on whatever happens to its debugger
        _log(f"not paused: {type(error).__name__}: {error}")
        refuse(f"{type(error).__name__}: {error}")
    finally:
        _pausing.now = False
        dial.about_to_pause.discard(threading.get_ident())


def say(text: str, at: str) -> None:
    """Write a line about a pause at `at` (file:line) to the job's log; the gateway calls it, in the paused frame."""
    _log(text, at=at)


def _log(text: str, *, at: str | None = None) -> None:
    """Write a line to the job's log."""
    if at is None:
        frame = sys._getframe(1)
        while frame.f_back is not None and _is_machinery(frame):
            frame = frame.f_back
        at = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    job_log.write(f"{at} {text}")


_said: set[str] = set()


def _say_once(text: str) -> None:
    """Write a line to the job's log that holds for this process from now on."""
    if text not in _said:
        _said.add(text)
        _log(text)


def _is_machinery(frame: FrameType) -> bool:
    return "/raydebug/worker/" in frame.f_code.co_filename or frame.f_code.co_filename.endswith("/contextlib.py")


def _was_shown_elsewhere(error: BaseException) -> bool:
    # What ray.get raises for a failed task: that task has paused already, at the frame that matters.
    exceptions = sys.modules.get("ray.exceptions")
    return exceptions is not None and isinstance(error, exceptions.RayError)


def _announce(debugger: Any, thread: threading.Thread, record: dict[str, Any]) -> None:
    dial.standing_of(debugger).announce(_dap_id(thread), record)
    what = record["exception"] or record["kind"]
    _log(f"paused ({what}); look at it with: raydebug attach", at=f"{record['file']}:{record['line']}")


def _dap_id(thread: threading.Thread) -> int:
    from _pydevd_bundle._debug_adapter.pydevd_base_schema import BaseSchema
    from _pydevd_bundle.pydevd_constants import get_current_thread_id

    return int(BaseSchema._translate_id_to_dap(get_current_thread_id(thread)))


def _watch_stops(debugger: Any) -> None:
    """Keep count of the threads that stand, at every stop of this process: for the line to the gateway, and Ray's own.

    Ray shows its count in its dashboard and to its tools.
    """
    if getattr(debugger, "_raydebug_watches", False):
        return
    debugger._raydebug_watches = True
    standing, wait = dial.standing_of(debugger), debugger.do_wait_suspend
    tell_ray: Callable[[bool], None] = lambda begins: None  # noqa: E731
    if records.is_ray_process():
        tell_ray = _teller(sys.modules["ray._private.worker"].global_worker)

    def do_wait_suspend(thread: threading.Thread, *args: Any, **kwargs: Any) -> Any:
        thread_id = _dap_id(thread)
        standing.begins(thread_id)
        tell_ray(True)
        try:
            return wait(thread, *args, **kwargs)
        except BaseException as error:  # Ray raises KeyboardInterrupt in the thread of a task that is cancelled
            _stand_no_longer(thread.additional_info)  # type: ignore[attr-defined]
            standing.broken_off(thread_id, f"{type(error).__name__} was raised in it: the task is cancelled, or ended")
            raise
        finally:
            tell_ray(False)
            info: Any = thread.additional_info  # type: ignore[attr-defined]
            standing.ends(thread_id, steps=info.pydev_step_cmd != -1)
            if (
                info.pydev_step_cmd == -1
            ):  # the stop may have been a step's, in a loop that never comes back to pause_at
                _trace_only_while_needed(debugger, info)

    debugger.do_wait_suspend = do_wait_suspend


def _stand_no_longer(info: Any) -> None:
    from _pydevd_bundle.pydevd_constants import STATE_RUN

    info.pydev_state = STATE_RUN
    info.pydev_step_cmd = -1


def _teller(worker: Any) -> Callable[[bool], None]:
    """Return a function that tells Ray of a stop (True) and of its end (False), in order and without waiting.

    Each is a call to Ray's head (about 1 ms): a step would cost two of them.
    """
    told: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def tell() -> None:
        stops: list[Any] = []
        while True:
            begins = told.get()
            with contextlib.suppress(Exception):
                if begins:
                    stops.append(worker.worker_paused_by_debugger())
                    stops[-1].__enter__()
                elif stops:
                    stops.pop().__exit__(None, None, None)

    teller = threading.Thread(target=tell, name="raydebug", daemon=True)
    teller.pydev_do_not_trace = True  # type: ignore[attr-defined]  # pydevd's own mark for its helpers
    teller.start()
    return told.put


def _trace_only_while_needed(debugger: Any, info: Any) -> None:
    tracing.trace_only_while_needed(debugger, info, others_stand=dial.standing_of(debugger).is_anybody())


def _forget_pauses_of_parent() -> None:
    _pausing.now = False
    dial.about_to_pause.clear()


os.register_at_fork(after_in_child=_forget_pauses_of_parent)
