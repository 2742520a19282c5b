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
    before = sys.getswitchinterval()
    sys.setswitchinterval(10.0)  # between the look and the blow the evaluation must not end: it would hit the job
    try:
        for ident, frame in sys._current_frames().items():
            if ident == threading.get_ident() or not _evaluates(frame, expression):
                continue
            is_main = ident == threading.main_thread().ident
            if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.pthread_kill(ident, signal.SIGINT)
            else:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(KeyboardInterrupt))
            return True
        return False
    finally:
        sys.setswitchinterval(before)


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
