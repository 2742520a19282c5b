"""`breakpoint()` in a Python below the cluster without our hook: one started with -S, or without our variables.

A hooked process sets PYTHONBREAKPOINT to this function for its children. If a child cannot even import it, Python warns
and continues; without it, pdb would read a job's empty stdin and end the child with BdbQuit.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from raydebug.protocol import variables
from raydebug.worker import job


def breakpoint_hook(*_args: Any, **_kwargs: Any) -> None:
    """Pause the calling frame, or log why that is impossible."""
    frame = sys._getframe(1)
    if variables.GATEWAY not in os.environ:
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        job.log(f"{place} not paused: {variables.GATEWAY} is not in the environment of this process")
        return
    from raydebug.worker import pause

    if job.debugger_is_ours():
        pause.pause_at(frame, kind="breakpoint")
