"""Keep pydevd's tracing on only while a client steps or has set breakpoints: it slows calls down by up to 23 times.

Sources (debugpy 1.8.22, private names, held by tests/ray/test_contracts.py): `PyDB.enable_tracing`,
`pydevd_tracing.SetTrace`, and from Python 3.12 on `pydevd_sys_monitoring.start_monitoring`, `stop_monitoring`,
`update_monitor_events`, `restart_events`: in debugpy from 1.8.6 on.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

_lock = threading.Lock()  # from Python 3.12 on one switch turns the tracing of all threads on and off


@contextlib.contextmanager
def not_traced(info: Any) -> Iterator[None]:
    """Keep pydevd from stopping in our own calls on the way to the user's frame, and in what is evaluated at a pause.

    Args:
        info: what pydevd knows of the calling thread.
    """
    from _pydevd_bundle.pydevd_constants import PYDEVD_USE_SYS_MONITORING

    if PYDEVD_USE_SYS_MONITORING:  # where `is_tracing` has no effect
        from _pydevd_sys_monitoring import pydevd_sys_monitoring as monitoring

        # The first call creates pydevd's record of this thread; the first event would create it later, enabled.
        monitoring.start_monitoring(all_threads=False)
        monitoring.stop_monitoring(all_threads=False)
    info.is_tracing += 1
    try:
        yield
    finally:
        info.is_tracing -= 1
        if PYDEVD_USE_SYS_MONITORING:
            monitoring.start_monitoring(all_threads=False)


def trace_only_while_needed(debugger: Any, info: Any, *, others_suspended: Callable[[], bool]) -> None:
    """Trace the calling thread for a step or for line breakpoints, and let it run at full speed otherwise.

    Args:
        debugger: this process's pydevd.
        info: what pydevd knows of the calling thread.
        others_suspended: says whether another thread of this process is suspended, or stepping.
    """
    needed = not debugger.pydb_disposed and (info.pydev_step_cmd != -1 or bool(debugger.breakpoints))
    from _pydevd_bundle.pydevd_constants import PYDEVD_USE_SYS_MONITORING

    if PYDEVD_USE_SYS_MONITORING:
        _monitor(here=needed, others_suspended=others_suspended)
        return
    if needed:
        debugger.enable_tracing()
        return
    import pydevd_tracing

    pydevd_tracing.SetTrace(None)
    if not debugger.breakpoints:
        threading.settrace(None)  # new threads are not traced any more either


def _monitor(*, here: bool, others_suspended: Callable[[], bool]) -> None:
    """Start Python's monitoring for the calling thread, or stop it after the last thread that needs it.

    Of two threads that are resumed at once the last one has to stop it. So each checks for the other under the lock,
    and only a thread that needs monitoring itself may start it: the need of the other can end at any moment.
    """
    from _pydevd_sys_monitoring import pydevd_sys_monitoring as monitoring

    with _lock:
        if here:
            monitoring.start_monitoring(all_threads=True)  # of Python: stop_monitoring gave it back
            monitoring.start_monitoring(all_threads=False)
            monitoring.update_monitor_events()
            monitoring.restart_events()
        elif not others_suspended():
            monitoring.stop_monitoring(all_threads=True)


def _forget_lock_of_parent() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock_of_parent)
