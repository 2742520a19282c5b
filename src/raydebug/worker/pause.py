"""Pause a frame: dial the gateway, announce the pause, wait in pydevd until a client resumes the thread.

Sources (debugpy 1.8.22, private names, held by tests/ray/test_contracts.py): `PyDB.set_suspend`,
`PyDB.do_wait_suspend`, `PyDB.stop_on_unhandled_exception`.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from raydebug import worker
from raydebug.protocol import variables
from raydebug.worker import pydevd_session, records, suspended_threads
from raydebug.worker.dial_in import NoGateway

if TYPE_CHECKING:  # these types cost each process 2 ms
    from raydebug.protocol.records import PauseRecord, TripwireRecord

_pausing = threading.local()
_pauses = itertools.count(1)
shown_errors: dict[int, BaseException] = {}
"""The exceptions at which threads are paused, by the thread's ident."""


def pause_at(
    frame: FrameType,
    *,
    kind: str,
    where: str | None = None,
    expires_s: float | None = None,
    request: str | None = None,
    tripwire: TripwireRecord | None = None,
    refuse: Callable[[str], None] = lambda _: None,
) -> bool:
    """Pause at a frame, and return whether it has paused; if that is impossible, log the reason and return at once.

    Args:
        frame: the user's frame.
        kind: `breakpoint`, `requested` or `tripwire`.
        where: the breakpoint from outside or the tripwire, as the user wrote it.
        expires_s: seconds without a client after which it resumes; None for the gateway's own limit.
        request: the request that it answers.
        tripwire: why a tripwire tripped.
        refuse: called with the reason why it does not pause.
    """

    def describe() -> PauseRecord:
        about = records.describe_pause(frame, kind)
        return {**about, "where": where, "expires_s": expires_s, "tripwire": tripwire, "request": request}

    def suspend(debugger: Any, thread: threading.Thread, _info: Any) -> None:
        from _pydevd_bundle.pydevd_comm_constants import CMD_SET_BREAK

        debugger.set_suspend(thread, CMD_SET_BREAK)
        debugger.do_wait_suspend(thread, frame, "line", None)

    return _pause(describe, suspend, refuse)


def pause_on_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> bool:
    """Pause at the frame that raised, and return whether it has paused.

    Cancellations and errors that another task has passed on are let through. Of a group, as asyncio's TaskGroup raises
    it, the first exception in it is shown: the group itself has only the frames that have waited.
    """
    while issubclass(kind, BaseExceptionGroup):
        group: BaseExceptionGroup[Any] = error  # type: ignore[assignment]
        member = BaseExceptionGroup.__dict__["exceptions"].__get__(group)[0]  # of Python's own: no code of the user's
        if member.__traceback__ is None:
            break
        if not issubclass(type(member), BaseExceptionGroup):
            _log(f"an exception group has ended it, of which the first exception is shown: {type(group).__name__}")
        kind, error, trace = type(member), member, member.__traceback__
    if trace is None or not issubclass(kind, Exception):
        return False
    # What ray.get raises for a failed task: that task has paused already, at the frame that matters.
    if "ray.exceptions" in sys.modules and isinstance(error, sys.modules["ray.exceptions"].RayError):
        return False

    def suspend(debugger: Any, thread: threading.Thread, info: Any) -> None:
        shown_errors[threading.get_ident()] = error
        try:
            debugger.stop_on_unhandled_exception(debugger, thread, info, (kind, error, trace))
        finally:
            shown_errors.pop(threading.get_ident(), None)

    return _pause(
        lambda: records.describe_pause(trace.tb_frame, "post-mortem", error=error, trace=trace), suspend, lambda _: None
    )


def stop_for_own_debugger(frame: FrameType) -> None:
    """Stop at a frame for the client of a debugger that the program has connected itself; nothing without one.

    Source: debugpy 1.8.22, `debugpy.server.api.breakpoint`.
    """
    api = sys.modules.get("debugpy.server.api")  # a pydevd without debugpy, as PyCharm has it, is not ours to use
    if api is not None and pydevd_session.own_debugger() is not None and api.is_client_connected():
        options = {"suspend": True, "trace_only_current_thread": True, "patch_multiprocessing": False}
        api._settrace(**options, stop_at_frame=frame)


def fallback_breakpoint(*_args: object, **_kwargs: object) -> None:
    """Stand in for `breakpoint()` in a Python below the cluster without our hook: one started with -S, for instance.

    A hooked process sets PYTHONBREAKPOINT to this function for its children. If a child cannot even import it, Python
    warns and continues; without it, pdb would read a job's empty stdin and end the child with BdbQuit.
    """
    frame = sys._getframe(1)
    if variables.GATEWAY not in os.environ:
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        worker.log(f"{place} not paused: {variables.GATEWAY} is not in the environment of this process")
    elif worker.debugger_is_ours():
        pause_at(frame, kind="breakpoint")


def _pause(
    describe: Callable[[], PauseRecord],
    suspend: Callable[[Any, threading.Thread, Any], None],
    refuse: Callable[[str], None],
) -> bool:
    """Announce a pause of the calling thread and suspend it; return whether it has paused.

    `suspend` waits in pydevd; it gets the debugger, the thread, and pydevd's info about it.
    """
    if getattr(_pausing, "now", False):
        refuse("its thread is paused already")
        return False
    with suspended_threads.programs_tracer_kept():
        _pausing.now = True
        pydevd_session.about_to_pause.add(threading.get_ident())
        try:
            debugger = pydevd_session.connected_debugger(_log)
            suspended_threads.watch_stops(debugger)
            thread = threading.current_thread()
            info = debugger.set_additional_thread_info(thread)
            with suspended_threads.not_traced(info):
                _announce(debugger, thread, {**describe(), "nth": next(_pauses)})
                suspend(debugger, thread, info)
            suspended_threads.trace_only_while_needed(debugger, info)
        except Exception as error:  # noqa: BLE001 - a failure of the debugger must not harm the job
            refuse(_log_failure(error))
            return False
        finally:
            _pausing.now = False
            pydevd_session.about_to_pause.discard(threading.get_ident())
    return True


def resume(thread: threading.Thread, why: str) -> None:
    """Resume a paused thread of this process without a client, and report why; nothing if it is not paused."""
    import pydevd

    debugger = pydevd.get_global_debugger()
    if debugger is None or not suspended_threads.suspended_by(debugger).is_suspended(suspended_threads.dap_id(thread)):
        return
    from _pydevd_bundle import pydevd_thread_lifecycle

    suspended_threads.suspended_by(debugger).broken_off(suspended_threads.dap_id(thread), why)
    pydevd_thread_lifecycle.internal_run_thread(thread, debugger.set_additional_thread_info)


def _log_failure(error: Exception) -> str:
    """Log why a thread is not paused, and return it; a missing debugger is logged once."""
    why = f"{type(error).__name__}: {error}"
    if isinstance(error, NoGateway | pydevd_session.NoDebugger):
        why = str(error)
    elif isinstance(error, RuntimeError) and "at interpreter shutdown" in str(error):  # CPython 3.12 _threadmodule.c
        why = "the program has ended, and Python starts no thread any more"
    if why not in _logged:
        _log(f"not paused: {why}")
    if isinstance(error, pydevd_session.NoDebugger):
        _logged.add(why)
    return why


_logged: set[str] = set()


def _log(text: str) -> None:
    """Write a line to the job's log."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        path = frame.f_code.co_filename
        if "/raydebug/worker/" not in path and not path.endswith("/contextlib.py"):
            break
        frame = frame.f_back
    worker.log(f"{frame.f_code.co_filename}:{frame.f_lineno} {text}")


def _announce(debugger: Any, thread: threading.Thread, record: PauseRecord) -> None:
    suspended_threads.suspended_by(debugger).announce(suspended_threads.dap_id(thread), record)
    tripwire = record.get("tripwire")
    what = record["exception"] or (f"{record['where']}: {tripwire['text']}" if tripwire else record["kind"])
    name = os.environ.get(variables.CLUSTER_NAME)
    command = f"raydebug attach --name {name}" if name else "raydebug attach"
    worker.log(f"{record['file']}:{record['line']} paused ({what}); look at it with: {command}")


def _forget_pauses_of_parent() -> None:
    _pausing.now = False
    shown_errors.clear()


os.register_at_fork(after_in_child=_forget_pauses_of_parent)
