"""Puts our pause where Ray calls its debugger from.

Source: ray 2.60.0, util/rpdb.py:298 (`ray.util.ray_debugpy.set_trace`), :343 (`_post_mortem`), and _raylet.pyx, which
calls `_post_mortem()` inside the `except` block of a failed task. tests/ray holds these names against the pinned Ray.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from raydebug.worker import names


def take_over(module: ModuleType) -> None:
    """Replace the two entry points of Ray's debugger in its freshly loaded module."""
    from raydebug.worker import records

    records.note_ray_process()
    if os.environ.get(names.OPEN) == "1":
        sys.breakpointhook = sys.__breakpointhook__  # goes by PYTHONBREAKPOINT, which Ray sets when it connects
        return
    module.set_trace = _set_trace  # type: ignore[attr-defined]
    module._post_mortem = _post_mortem  # type: ignore[attr-defined]


def _set_trace(breakpoint_uuid: Any = None) -> None:
    from raydebug.worker import pause

    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("ray.util.rpdb", "ray.util.debugpy"):
        frame = frame.f_back
    pause.pause_at(frame, kind="breakpoint")


def _post_mortem() -> None:
    from raydebug.worker import pause

    kind, error, trace = sys.exc_info()
    if kind is not None and error is not None:
        pause.pause_on_error(kind, error, trace)
