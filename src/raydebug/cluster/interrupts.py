"""Ctrl-C while a cluster comes up: noticed even where Python, or an import, drops the exception that it raises.

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
    """Remember a Ctrl-C as well as raise it; one that gets out of here ends the program, and is the last one heard."""
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
    """Let no Ctrl-C end this half-way: a person presses it twice."""
    before = _answer_by(signal.SIG_IGN)
    try:
        yield
    finally:
        _answer_by(before)


def _answer_by(handler: Any) -> Any:
    """Set who answers Ctrl-C, and return who did; only the main thread may. None: not one of Python's."""
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
