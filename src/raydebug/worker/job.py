"""The job of this process: its debugger mode and its log.

Every Python below a cluster loads it: it has to stay small.
"""

from __future__ import annotations

import os
import sys

from raydebug.protocol import variables


def debugger_is_ours() -> bool:
    """Say whether breakpoints of this process go to the gateway (the debugger is not off, and not Ray's legacy one)."""
    return os.environ.get(variables.RAY_DEBUG, "1") == "1"


def post_mortem_is_on() -> bool:
    """Say whether this process pauses when an exception leaves a task or ends the program."""
    return debugger_is_ours() and os.environ.get(variables.RAY_DEBUG_POST_MORTEM, "0") == "1"


def log(text: str) -> None:
    """Write a line to stderr, which Ray forwards to the job's log; a closed stderr does not fail the job."""
    try:
        sys.stderr.write(f"raydebug: {text}\n")
        sys.stderr.flush()
    except Exception:  # noqa: BLE001 - a program may have replaced stderr; contextlib costs each start of Python 4 ms
        pass


def fallback_breakpoint(*_args: object, **_kwargs: object) -> None:
    """Stand in for `breakpoint()` in a Python below the cluster without our hook: one started with -S, for instance.

    A hooked process sets PYTHONBREAKPOINT to this function for its children. If a child cannot even import it, Python
    warns and continues; without it, pdb would read a job's empty stdin and end the child with BdbQuit.
    """
    frame = sys._getframe(1)
    if variables.GATEWAY not in os.environ:
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        log(f"{place} not paused: {variables.GATEWAY} is not in the environment of this process")
        return
    from raydebug.worker import pause

    if debugger_is_ours():
        pause.pause_at(frame, kind="breakpoint")
