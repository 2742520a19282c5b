"""Pause a running process on request of a client; the request arrives over the control channel."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from types import FrameType

from raydebug.protocol import messages
from raydebug.protocol.records import Refusal, WorkRecord
from raydebug.worker import active_thread, pause, records
from raydebug.worker.thread_callback import ThreadCallback, Unreachable

_pending: dict[str, ThreadCallback] = {}


def pause_for(request: str, send: Callable[[str, Refusal], None]) -> None:
    """Pause the active thread of this process at its next line.

    Args:
        request: identifies the request; the pause's record repeats it.
        send: sends a message to the gateway: PAUSE_REFUSED if the thread cannot be paused.
    """

    def refuse(cause: str) -> None:
        send(messages.PAUSE_REFUSED, {"request": request, "cause": cause})

    def suspend(frame: FrameType) -> None:
        if _pending.pop(request, None) is not None:
            pause.pause_at(frame, kind="requested", request=request, refuse=refuse)

    callback = _pending[request] = ThreadCallback(active_thread.active_thread(), suspend)
    try:
        callback.schedule()
    except Exception as error:  # noqa: BLE001 - the client gets the reason; the job is not affected
        _pending.pop(request, None)
        refuse(str(error) if isinstance(error, Unreachable) else f"{type(error).__name__}: {error}")


def withdraw(request: str | None = None) -> None:
    """Cancel a pending request, or all of them: no client waits for the pause any longer."""
    for one in [request] if request is not None else list(_pending):
        callback = _pending.pop(one, None)
        if callback is not None:
            callback.cancel()


def describe() -> WorkRecord:
    """Return what this process is, and where its active thread runs.

    Re-arm pending pause requests: the active thread may have changed, or a debugger replaced our trace function.
    """
    active = active_thread.active_thread()
    for request, callback in list(_pending.items()):
        current = callback if callback.ident == active else callback.retarget(active)
        if request in _pending:  # it has not run just now
            _pending[request] = current
            with contextlib.suppress(Unreachable):
                current.schedule()
    return {**records.describe_process(), **records.describe_work(), "doing": active_thread.location_of(active)}


os.register_at_fork(after_in_child=_pending.clear)
