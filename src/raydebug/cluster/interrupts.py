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
    """Remember a Ctrl-C as well as raise it."""
    global _pressed
    _pressed = False
    with _answered_by(_note):
        yield


@contextlib.contextmanager
def ignored() -> Iterator[None]:
    """Let no Ctrl-C end this half-way: a person presses it twice."""
    with _answered_by(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _answered_by(handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
