"""Pauses that somebody asks for while this process works; its control line brings the question (worker/control.py)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from types import FrameType
from typing import Any

from raydebug.worker import pause, reach, records, whereabouts

Tell = Callable[[str, dict[str, Any]], None]

_on_their_way: dict[str, reach.Reach] = {}


def pause_for(request: str, tell: Tell) -> None:
    """Pause the thread that does this process's work, at the line where it is.

    Args:
        request: whose question it is; the pause's record says it again.
        tell: sends an event to the gateway; `refused` where it cannot be.
    """

    def refuse(cause: str) -> None:
        tell("refused", {"request": request, "cause": cause})

    def stand(frame: FrameType) -> None:
        if _on_their_way.pop(request, None) is not None:
            pause.pause_at(frame, kind="requested", request=request, refuse=refuse)

    one = _on_their_way[request] = reach.Reach(whereabouts.working_thread(), stand)
    try:
        one.set_out()
    except Exception as error:  # noqa: BLE001 - whoever asked is told; the job goes on
        _on_their_way.pop(request, None)
        refuse(str(error) if isinstance(error, reach.OutOfReach) else f"{type(error).__name__}: {error}")


def withdraw(request: str | None = None) -> None:
    """Give up a question, or all: nobody waits for the pause any longer."""
    for one in [request] if request is not None else list(_on_their_way):
        found = _on_their_way.pop(one, None)
        if found is not None:
            found.withdraw()


def describe() -> dict[str, Any]:
    """Return what this process is, and what its working thread does.

    What is on its way sets out anew: another thread may do the work by now, or a debugger may have taken the tracing.
    """
    working = whereabouts.working_thread()
    for request, one in list(_on_their_way.items()):
        again = one if one.ident == working else one.to(working)
        if request in _on_their_way:  # it has not arrived just now
            _on_their_way[request] = again
            with contextlib.suppress(reach.OutOfReach):
                again.set_out()
    return {**records.describe_process(), **records.describe_work(), "doing": whereabouts.doing(working)}


os.register_at_fork(after_in_child=_on_their_way.clear)
