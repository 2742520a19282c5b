"""What `breakpoint()` calls in a Python below the cluster without our hook: one started with -S, or without our names.

A hooked process puts it into PYTHONBREAKPOINT for its children. Where a child cannot even import it, Python says so in
a warning and goes on; without it, pdb would read a job's empty stdin and end the child with BdbQuit.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from raydebug.worker import job_log, names


def breakpoint_hook(*_args: Any, **_kwargs: Any) -> None:
    """Pause the calling frame where that can be, and say why where it cannot."""
    frame = sys._getframe(1)
    if names.GATEWAY not in os.environ:
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        job_log.write(f"{place} not paused: {names.GATEWAY} is not in the environment of this process")
        return
    from raydebug.worker import pause, startup

    if startup.debugger_is_ours():
        pause.pause_at(frame, kind="breakpoint")
