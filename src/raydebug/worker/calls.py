"""The age of a call, from the moment at which somebody first looked at it.

Its mark lives in the frame, as long as the call: frames of CPython 3.11 to 3.13 have no other place for it that the
user's code does not see, and a reference to a frame would keep the locals of a call that has returned.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

from raydebug.protocol.records import OpenCall
from raydebug.worker.frames import MAX_NAME, is_users


class Seen:
    """Stands in for the trace function of a frame that has none. Where something traces, it does nothing."""

    __slots__ = ("at_s",)

    def __init__(self) -> None:
        self.at_s = time.monotonic()

    def __call__(self, *_event: Any) -> Seen:
        return self


def age_s(frame: FrameType) -> float | None:
    """Return the seconds since this was first asked of a call, 0 the first time; None if a debugger traces it."""
    if frame.f_trace is None:
        frame.f_trace = Seen()
    mark = frame.f_trace
    return round(time.monotonic() - mark.at_s, 3) if isinstance(mark, Seen) else None


def open_call(thread: str, frames: Sequence[FrameType]) -> OpenCall | None:
    """Return the outermost call of the user's code in a stack; None without one, or where a debugger traces it.

    Args:
        thread: its name.
        frames: innermost first.
    """
    inside = [frame for frame in frames if is_users(frame) and frame.f_code.co_name != "<module>"]
    own = [frame for frame in inside if "-packages/" not in frame.f_code.co_filename]
    for frame in (own or inside)[-1:]:
        seen_s = age_s(frame)
        if seen_s is not None:
            code = frame.f_code
            return {
                "thread": thread,
                "function": code.co_qualname[:MAX_NAME],
                "file": code.co_filename,
                "line": frame.f_lineno or 0,
                "age_s": seen_s,
            }
    return None
