"""The local variables of a frame that goes on running, without keeping their values alive.

On Python 3.11 and 3.12 `frame.f_locals` of a function is a dict that stays in the frame: what it holds would live
until the function returns, also after its `del batch`. From 3.13 on (PEP 667) it is a view.

Source: CPython 3.11 and 3.12 Objects/frameobject.c, Python/sysmodule.c `call_trampoline`.
"""

from __future__ import annotations

import operator
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import compress, repeat
from types import FrameType
from typing import Any

CO_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: of functions; in others f_locals is the namespace itself
# References to the dict: of the frame, of `found`, of `keep`, of `of_others`, of the call of getrefcount.
OWN_REFERENCES = 5
_write_back: Callable[..., None] | None = None
if sys.version_info < (3, 13):
    try:
        import ctypes

        _write_back = ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.c_int)(
            ("PyFrame_LocalsToFast", ctypes.pythonapi)
        )
    except Exception:  # noqa: BLE001 - a Python without libffi, or one that may not use it: values live on
        pass


class Seen:
    """Stands in for the trace function of a frame that has none (calls.py). Where something traces, it does nothing."""

    __slots__ = ("at_s",)

    def __init__(self) -> None:
        self.at_s = time.monotonic()

    def __call__(self, *_event: Any) -> Seen:
        return self


def locals_of(frame: FrameType) -> Any:
    """Return the local variables of a frame, of any thread; those of a module or a class are its namespace itself."""
    found = frame.f_locals
    code = frame.f_code
    is_copy = code.co_flags & CO_OPTIMIZED and type(found) is dict  # exec() of a function's code has any mapping
    is_traced = frame.f_trace is not None and type(frame.f_trace) is not Seen
    if _write_back is None or not is_copy or is_traced:
        return found
    # What else is in the dict was put there by exec() or a debugger, and is nowhere else.
    names = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    kept: dict[str, Any] = {}
    keep = partial(kept.update, found)
    # All in one call of C, so that the frame's thread does not run in between: it may be inside of a tracer, after
    # which Python writes the dict back to the variables, and deletes those that are not in it. To write back what is
    # empty changes none, and ends that. Somebody who holds the dict too (`locals()`, pdb) keeps it as it is.
    empty = [partial(found.pop, name, None) for name in names]
    steps = [keep, *empty, partial(_write_back, frame, 0)]
    of_others = map(sys.getrefcount, repeat(found))
    is_ours = map((OWN_REFERENCES + len(names)).__ge__, of_others)
    deque(map(operator.call, compress(steps, is_ours)), 0)
    return kept or {**found}
