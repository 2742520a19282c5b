"""Ctrl-C while a cluster starts: noticed even if Python, or an import, drops its exception.

A KeyboardInterrupt that hits a destructor or a callback of the garbage collector is printed as ignored, and lost
(https://docs.python.org/3/reference/datamodel.html#object.__del__).
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

_pressed = False


@contextlib.contextmanager
def noticed() -> Iterator[None]:
    """Record a Ctrl-C in addition to raising it; after one that leaves this block, further ones are ignored."""
    global _pressed
    _pressed = False
    before = _answer_by(_note)
    try:
        yield
    except KeyboardInterrupt:
        before = signal.SIG_IGN  # Python would die of a second one on its way out
        raise
    finally:
        _pressed = False
        _answer_by(before)


@contextlib.contextmanager
def ignored() -> Iterator[None]:
    """Ignore Ctrl-C, so that cleaning up is not cut off by a second one."""
    before = _answer_by(signal.SIG_IGN)
    try:
        yield
    finally:
        _answer_by(before)


def _answer_by(handler: Any) -> Any:
    """Set the SIGINT handler and return the earlier one; None if it is not Python's, or outside the main thread."""
    if handler is None or threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGINT, handler)


def raise_if_pressed() -> None:
    """Raise the KeyboardInterrupt that was lost.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed since `noticed` began.
    """
    if _pressed:
        raise KeyboardInterrupt


def _note(_number: int, _frame: FrameType | None) -> None:
    global _pressed
    _pressed = True
    raise KeyboardInterrupt
