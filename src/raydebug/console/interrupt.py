"""Ctrl-C while we wait: it ends the wait, or interrupts the evaluation in the paused process (`PROBE`)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")
RESPONSE_TIMEOUT_S = 1.5  # of an evaluation that was interrupted
GAVE_UP = "*** stopped waiting; the code still runs in the process, and the next command waits for it"


class Interrupted(Exception):
    """The person pressed Ctrl-C while we waited."""


async def interruptible(awaitable: Awaitable[T]) -> T:
    """Wait for an awaitable, or until Ctrl-C.

    Raises:
        Interrupted: Ctrl-C came first; the awaitable is cancelled.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(awaitable)
    pressed = False

    def stop() -> None:
        nonlocal pressed
        pressed = True
        task.cancel()

    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        return await task
    except asyncio.CancelledError:
        if pressed:
            raise Interrupted from None
        raise
    finally:
        ignore_interrupts()


def ignore_interrupts() -> None:
    """Replace Python's default handler of Ctrl-C, which would raise in the middle of a command."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)


async def interruptible_there(running: asyncio.Future[T], interrupt: Callable[[], Awaitable[None]]) -> T:
    """Wait for a command that runs in a paused process; Ctrl-C interrupts it there, and its response is returned.

    Args:
        running: the command.
        interrupt: raises KeyboardInterrupt in the process.

    Raises:
        Interrupted: the code did not end; the command is cancelled on this side only.
    """
    try:
        return await interruptible(asyncio.shield(running))
    except Interrupted:
        await interrupt()
        await asyncio.wait([running], timeout=RESPONSE_TIMEOUT_S)
        if not running.done():
            running.cancel()
            raise
        return running.result()


def interrupt_evaluation(expression: str) -> bool:
    """Raise KeyboardInterrupt in the thread that evaluates an expression; return whether there is one.

    The functions of PROBE are sent as source to the paused process.

    Source: debugpy 1.8.22 `_pydevd_bundle.pydevd_comm.internal_evaluate_expression_json`, whose local `request` has the
    expression; `pydevd_vars.eval_in_context` turns a KeyboardInterrupt into a failed evaluation. A signal also ends
    a sleep, but only the main thread receives it; it is sent only where SIGINT still has its default handler.
    """
    import ctypes
    import signal
    import sys
    import threading

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
    import signal
    import threading

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


PROBE = (interrupt_evaluation, _main_thread_takes_signals, _evaluates)
