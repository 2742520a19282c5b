"""pydevd's tracing, on only while somebody steps or has set a breakpoint: it makes Python calls up to 23 times slower.

Sources (debugpy 1.8.22, private names, held by tests/ray/test_contracts.py): `PyDB.enable_tracing`,
`pydevd_tracing.SetTrace`, and from Python 3.12 on `pydevd_sys_monitoring.start_monitoring`, `stop_monitoring`,
`update_monitor_events`, `restart_events`, `suspend_current_thread_tracing`, `resume_current_thread_tracing`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def not_traced(info: Any) -> Iterator[None]:
    """Keep pydevd from stopping in our own calls on the way to the user's frame, and in what is evaluated at a pause.

    Args:
        info: what pydevd knows of the calling thread.
    """
    from _pydevd_bundle.pydevd_constants import PYDEVD_USE_SYS_MONITORING

    was_monitored = False
    if PYDEVD_USE_SYS_MONITORING:  # where `is_tracing` is not looked at
        from _pydevd_sys_monitoring import pydevd_sys_monitoring as monitoring

        was_monitored = monitoring.suspend_current_thread_tracing()
    info.is_tracing += 1
    try:
        yield
    finally:
        info.is_tracing -= 1
        if was_monitored:
            monitoring.resume_current_thread_tracing()


def trace_only_while_needed(debugger: Any, info: Any, *, others_stand: bool) -> None:
    """Trace the calling thread for a step or for line breakpoints, and let it run at full speed otherwise.

    Args:
        debugger: this process's pydevd.
        info: what pydevd knows of the calling thread.
        others_stand: whether another thread of this process stands, or steps.
    """
    needed = not debugger.pydb_disposed and (info.pydev_step_cmd != -1 or bool(debugger.breakpoints))
    from _pydevd_bundle.pydevd_constants import PYDEVD_USE_SYS_MONITORING

    if PYDEVD_USE_SYS_MONITORING:
        _monitor(here=needed, anywhere=needed or others_stand)
        return
    if needed:
        debugger.enable_tracing()
        return
    import pydevd_tracing

    pydevd_tracing.SetTrace(None)
    if not debugger.breakpoints:
        threading.settrace(None)  # new threads are not traced any more either


def _monitor(*, here: bool, anywhere: bool) -> None:
    from _pydevd_sys_monitoring import pydevd_sys_monitoring as monitoring

    if not anywhere:
        monitoring.stop_monitoring(all_threads=True)
        return
    monitoring.start_monitoring(all_threads=True)  # of Python: stop_monitoring gave it back
    if here:
        monitoring.start_monitoring(all_threads=False)
    monitoring.update_monitor_events()
    monitoring.restart_events()
