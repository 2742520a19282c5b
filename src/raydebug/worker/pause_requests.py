"""Pause a running process on request of a client: its active thread pauses at its next line of the user's code."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from raydebug.protocol.secrets import scrubbed
from raydebug.worker import pause
from raydebug.worker.frames import active_thread
from raydebug.worker.thread_callback import ThreadCallback, Untraceable

if TYPE_CHECKING:  # these types cost each process 4 ms
    from raydebug.protocol.questions import Nothing, PauseBody
    from raydebug.protocol.records import Refusal

_pending: dict[str, tuple[ThreadCallback, Callable[[str], None]]] = {}  # by request; and what refuses it


def pause_for(body: PauseBody) -> Callable[[Callable[[Refusal], None]], None]:
    """Pause the active thread of this process at its next line; an answer follows only if it cannot."""
    request = body["request"]

    def begin(answer: Callable[[Refusal], None]) -> None:
        def refuse(cause: str) -> None:
            answer({"cause": scrubbed(cause)})

        def suspend(frame: FrameType) -> None:
            if _pending.pop(request, None) is not None:
                pause.pause_at(frame, kind="requested", request=request, refuse=refuse)

        _schedule(request, ThreadCallback(active_thread(), suspend), refuse)

    return begin


def _schedule(request: str, callback: ThreadCallback, refuse: Callable[[str], None]) -> None:
    _pending[request] = callback, refuse
    try:
        callback.schedule()
    except Exception as error:  # noqa: BLE001 - the client gets the reason; the job is not affected
        _pending.pop(request, None)
        refuse(str(error) if isinstance(error, Untraceable) else f"{type(error).__name__}: {error}")


def withdraw(body: PauseBody) -> Nothing:
    """Cancel a request: no client waits for the pause any longer."""
    pending = _pending.pop(body["request"], None)
    if pending is not None:
        pending[0].cancel()
    return {}


def withdraw_all() -> None:
    """Cancel all requests: those of a gateway that is gone."""
    for request in list(_pending):
        withdraw({"request": request})


def rearm(active: int) -> None:
    """Re-arm pending requests: the active thread may have changed, or a debugger replaced our trace function."""
    for request, (callback, refuse) in list(_pending.items()):
        current = callback if callback.ident == active else callback.retarget(active)
        if request in _pending:  # it has not run just now
            _schedule(request, current, refuse)


os.register_at_fork(after_in_child=_pending.clear)
