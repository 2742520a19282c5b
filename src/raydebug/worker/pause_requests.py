"""Pause a running process on request of a client: its active or a named thread pauses at its next line of user code."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from raydebug.protocol.secrets import scrubbed
from raydebug.worker import pause
from raydebug.worker.frames import MAX_NAME, active_thread, users_frame
from raydebug.worker.thread_callback import ThreadCallback, Untraceable

if TYPE_CHECKING:  # these types cost each process 4 ms
    from raydebug.protocol.questions import Nothing, PauseBody
    from raydebug.protocol.records import Refusal

# By request: what refuses it, and whether its thread was named.
_pending: dict[str, tuple[ThreadCallback, Callable[[str], None], bool]] = {}


def pause_for(body: PauseBody) -> Callable[[Callable[[Refusal], None]], None]:
    """Pause the named or the active thread of this process at its next line; an answer follows only if it cannot."""
    request, name = body["request"], body.get("thread")

    def begin(answer: Callable[[Refusal], None]) -> None:
        def refuse(cause: str) -> None:
            answer({"cause": scrubbed(cause)})

        def suspend(frame: FrameType) -> None:
            if _pending.pop(request, None) is not None:
                pause.pause_at(frame, kind="requested", request=request, refuse=refuse)

        ident = _thread_named(name) if name else active_thread()
        if ident is None:
            refuse(f"it has no thread '{name}' now; `raydebug stacks --all` lists them")
        else:
            _schedule(request, ThreadCallback(ident, suspend), refuse, is_named=bool(name))

    return begin


def _thread_named(name: str) -> int | None:
    """Return the thread that `stacks` calls so, of several one that runs the user's code; None if there is none."""
    frames = sys._current_frames()
    names = {thread.ident: scrubbed(thread.name)[:MAX_NAME] for thread in threading.enumerate()}
    same = [ident for ident in frames if names.get(ident, f"thread {ident}") == name]
    return next((ident for ident in same if users_frame(frames[ident]) is not None), next(iter(same), None))


def _schedule(request: str, callback: ThreadCallback, refuse: Callable[[str], None], *, is_named: bool) -> None:
    _pending[request] = callback, refuse, is_named
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


def rearm(active: int) -> int:
    """Re-arm pending requests: the active thread may have changed, or a debugger replaced our trace function.

    Return the thread that is waited for: the active one, or the one that a request names.
    """
    waited_for = active
    for request, (callback, refuse, is_named) in list(_pending.items()):
        current = callback if is_named or callback.ident == active else callback.retarget(active)
        waited_for = current.ident
        if request in _pending:  # it has not run just now
            _schedule(request, current, refuse, is_named=is_named)
    return waited_for


os.register_at_fork(after_in_child=_pending.clear)
