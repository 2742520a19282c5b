"""Pauses that somebody asks for while this process works; its control line brings the question (worker/control.py)."""

from __future__ import annotations

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
        _on_their_way.pop(request, None)
        pause.pause_at(frame, kind="requested", request=request, refuse=refuse)

    one = reach.Reach(whereabouts.working_thread(), stand)
    _on_their_way[request] = one
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
    """Return what this process is, and what its working thread does."""
    asked = next(iter(_on_their_way.values()), None)
    ident = whereabouts.working_thread() if asked is None else asked.ident
    return {**records.describe_process(), **records.describe_work(), "doing": whereabouts.doing(ident)}


os.register_at_fork(after_in_child=_on_their_way.clear)
