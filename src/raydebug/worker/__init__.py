"""Code that lives inside the user's processes. Standard library and `protocol` only; a failure never harms the job.

`startup` and `import_hooks` run in every Python below the cluster; all else is imported when it is needed: the control
channel at `import ray` or `import torch`, the rest at a question, a pause or a crash. This file has what all of it
asks: the debugger's mode, and the job's log. Every Python loads it: it has to stay small.
"""

from __future__ import annotations

import _thread  # threading has its locks from here, and is not loaded in every Python
import os
import sys

from raydebug.protocol import variables

TYPE_CHECKING = False  # as in startup.py
if TYPE_CHECKING:
    from typing import Any

fork_guard = _thread.RLock()
"""Held by a thread while it imports our code or the debugger, or dials in for its pydevd: a fork waits for that.

In a child, the locks of another thread stay taken, those of the import system too: its first breakpoint or crash would
hang. It is one lock, registered before any other thread runs: a fork that has begun does not see later registrations.
"""
os.register_at_fork(
    before=lambda: fork_guard.acquire(),
    after_in_parent=lambda: fork_guard.release(),
    after_in_child=lambda: fork_guard.release(),
)


def debugger_is_ours() -> bool:
    """Return whether breakpoints of this process go to the gateway (the debugger is neither off nor legacy)."""
    return os.environ.get(variables.RAY_DEBUG, "1") == "1"


def log(text: str) -> None:
    """Write a line to stderr, which Ray forwards to the job's log; a closed stderr does not fail the job."""
    try:
        sys.stderr.write(f"raydebug: {text}\n")
        sys.stderr.flush()
    except Exception:  # noqa: BLE001 - a program may have replaced stderr; contextlib costs each start of Python 4 ms
        pass


class harmless:  # noqa: N801 - a statement of its own: `with worker.harmless(...)`; contextlib is too slow to import
    """A block of ours in the user's program: the job goes on if it fails, and its log says what the process lacks."""

    def __init__(self, lacks: str) -> None:
        self._lacks = lacks

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if isinstance(error, Exception):
            log(f"{self._lacks}: {type(error).__name__}: {text_of(error)}")
        return isinstance(error, Exception)


def replace(module: Any, name: str, stand_in: Any) -> None:
    """Put a function of ours in place of a module's; it is printed, and pickled, by the module's name."""
    stand_in.__module__, stand_in.__name__, stand_in.__qualname__ = module.__name__, name, name
    setattr(module, name, stand_in)


def text_of(error: BaseException | None) -> str:
    """Return the text of an error."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a user's __str__ may do anything
        return "(its text cannot be read)"
