"""Lets a paused thread go on at once: pydevd itself looks only every 0.2 s whether it was resumed.

Source: debugpy 1.8.22, pydevd.py:2297 (`TIMEOUT_SLOW`): the thread waits on an event that neither
`internal_run_thread` (_pydevd_bundle/pydevd_thread_lifecycle.py:53) nor `internal_step_in_thread`
(_pydevd_bundle/pydevd_comm.py:716, called by pydevd_api.py:258) sets.
"""

from __future__ import annotations

from typing import Any


def wake_resumed_threads(debugger: Any) -> None:
    """Make the two functions that resume a thread also wake it."""
    from _pydevd_bundle import pydevd_api, pydevd_thread_lifecycle
    from _pydevd_bundle.pydevd_constants import get_thread_id

    run, step = pydevd_thread_lifecycle.internal_run_thread, pydevd_api.internal_step_in_thread
    if getattr(run, "_raydebug_wakes", False):
        return

    def wake(thread_id: str) -> None:
        import pydevd

        current = pydevd.get_global_debugger()
        if current is not None:
            current.get_internal_queue_and_event(thread_id)[1].set()

    def internal_run_thread(thread: Any, set_additional_thread_info: Any) -> None:
        run(thread, set_additional_thread_info)
        wake(get_thread_id(thread))

    def internal_step_in_thread(py_db: Any, thread_id: str, *args: Any, **kwargs: Any) -> None:
        step(py_db, thread_id, *args, **kwargs)
        wake(thread_id)

    internal_run_thread._raydebug_wakes = True  # type: ignore[attr-defined]
    pydevd_thread_lifecycle.internal_run_thread = internal_run_thread
    pydevd_api.internal_step_in_thread = internal_step_in_thread
