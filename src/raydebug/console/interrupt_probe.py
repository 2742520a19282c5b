"""What Ctrl-C runs inside the paused process while it evaluates: the source of this module is sent as it stands."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from typing import Any


def interrupt(expression: str) -> bool:
    """Raise KeyboardInterrupt in the thread that evaluates an expression for a debugger; say whether there is one.

    Source: debugpy 1.8.22 `_pydevd_bundle.pydevd_comm.internal_evaluate_expression_json`, whose local `request` has the
    expression; `pydevd_vars.eval_in_context` answers a KeyboardInterrupt as a failed evaluation. A signal also ends
    a sleep; it goes to the main thread alone, and only where it means nothing else.
    """
    main = threading.main_thread().ident if _main_thread_takes_signals() else None
    before = sys.getswitchinterval()
    sys.setswitchinterval(10.0)  # between the look and the blow the evaluation must not end: it would hit the job
    try:
        for ident, frame in sys._current_frames().items():
            if ident == threading.get_ident() or not _evaluates(frame, expression):
                continue
            if ident == main:
                signal.pthread_kill(ident, signal.SIGINT)
            else:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(KeyboardInterrupt))
            return True
        return False
    finally:
        sys.setswitchinterval(before)


def _main_thread_takes_signals() -> bool:
    """Say whether SIGINT is KeyboardInterrupt in the main thread: Ray blocks it in its workers."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    try:
        with open(f"/proc/self/task/{threading.main_thread().native_id}/status") as file:  # noqa: PTH123 - in a worker
            blocked = next(int(line.split()[1], 16) for line in file if line.startswith("SigBlk:"))
    except (OSError, StopIteration):
        return False
    return not blocked >> (signal.SIGINT - 1) & 1


def _evaluates(frame: Any, expression: str) -> bool:
    inside = False  # of what answers a KeyboardInterrupt
    while frame is not None:
        name = frame.f_code.co_name
        inside = inside or name in ("eval_in_context", "evaluate_expression")
        if name == "internal_evaluate_expression_json":
            request = frame.f_locals.get("request")
            return inside and getattr(getattr(request, "arguments", None), "expression", None) == expression
        frame = frame.f_back
    return False
