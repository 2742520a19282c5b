"""Interrupt an evaluation inside the paused process, for Ctrl-C; sent as source."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from typing import Any


def interrupt(expression: str) -> bool:
    """Raise KeyboardInterrupt in the thread that evaluates an expression; return whether there is one.

    Source: debugpy 1.8.22 `_pydevd_bundle.pydevd_comm.internal_evaluate_expression_json`, whose local `request` has the
    expression; `pydevd_vars.eval_in_context` turns a KeyboardInterrupt into a failed evaluation. A signal also ends
    a sleep, but only the main thread receives it; it is sent only where SIGINT still has its default handler.
    """
    main = threading.main_thread().ident if _main_thread_takes_signals() else None
    before = sys.getswitchinterval()
    sys.setswitchinterval(10.0)  # the evaluation must not end before the interrupt: the job would get it
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
    """Return whether SIGINT raises KeyboardInterrupt in the main thread: Ray blocks it in its workers."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    try:
        with open(f"/proc/self/task/{threading.main_thread().native_id}/status") as file:  # noqa: PTH123 - in a worker
            blocked = next(int(line.split()[1], 16) for line in file if line.startswith("SigBlk:"))
    except (OSError, StopIteration):
        return False
    return not blocked >> (signal.SIGINT - 1) & 1


def _evaluates(frame: Any, expression: str) -> bool:
    inside = False  # the functions that turn a KeyboardInterrupt into a failed evaluation
    while frame is not None:
        name = frame.f_code.co_name
        inside = inside or name in ("eval_in_context", "evaluate_expression")
        if name == "internal_evaluate_expression_json":
            request = frame.f_locals.get("request")
            return inside and getattr(getattr(request, "arguments", None), "expression", None) == expression
        frame = frame.f_back
    return False
