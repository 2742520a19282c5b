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
