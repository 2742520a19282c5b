"""Debuggers that read commands from stdin: in a process whose stdin gives none, they stop as `breakpoint()` does.

pdb would read the end of a worker's stdin, and end the task with BdbQuit; a console would end at once, in silence.

Source: CPython 3.11 to 3.13 bdb.py, pdb.py, code.py. ipdb's and IPython's debuggers, torch's ForkedPdb are subclasses
of `pdb.Pdb` that call its methods.
"""

from __future__ import annotations

import io
import os
import sys
from types import FrameType, ModuleType
from typing import Any

from raydebug import worker
from raydebug.protocol import variables


def hook_pdb(module: ModuleType) -> None:
    """Let `set_trace` and `post_mortem` of pdb, and of its subclasses, pause where no command can come."""
    debugger: Any = module.Pdb
    plain_set_trace, plain_interaction = debugger.set_trace, debugger.interaction

    def set_trace(self: Any, frame: FrameType | None = None, **options: Any) -> Any:
        frame = frame or sys._getframe(1)
        return None if _is_paused(self, frame) else plain_set_trace(self, frame, **options)

    def interaction(self: Any, frame: FrameType | None, trace: Any) -> Any:
        if frame is not None or not _should_pause(self):
            return plain_interaction(self, frame, trace)
        error = trace if isinstance(trace, BaseException) else sys.exc_info()[1] or getattr(sys, "last_value", None)
        if error is not None:
            _pause().pause_on_error(type(error), error, getattr(error, "__traceback__", trace))
        return None

    debugger.set_trace, debugger.interaction = set_trace, interaction


def hook_console(module: ModuleType) -> None:
    """Let `code.interact` and `IPython.embed` pause where no command can come."""
    name = "interact" if module.__name__ == "code" else "embed"
    plain = getattr(module, name)

    def stand_in(*arguments: Any, **options: Any) -> Any:
        reads = any(map(callable, (*arguments[1:2], options.get("readfunc"))))
        return None if not reads and _is_paused(None, sys._getframe(1)) else plain(*arguments, **options)

    worker.replace(module, name, stand_in)


def _is_paused(debugger: Any, frame: FrameType) -> bool:
    if not _should_pause(debugger):
        return False
    _pause().pause_at(frame, kind="breakpoint")
    return True


def _should_pause(debugger: Any) -> bool:
    """Return whether breakpoints are ours and a reader of stdin gets none; a pdb with files of its own reads those."""
    if not worker.debugger_is_ours() or os.environ.get(variables.OPEN) == "1":
        return False
    if not getattr(debugger, "use_rawinput", 1):
        return False
    try:
        number = sys.stdin.fileno()
        if os.isatty(number):  # a worker has inherited it from whoever started Ray
            return os.tcgetpgrp(number) != os.getpgrp()
        return os.path.samestat(os.fstat(number), os.stat(os.devnull))
    except io.UnsupportedOperation:  # a text that the program gives
        return False
    except (AttributeError, OSError, ValueError):  # none, closed
        return True


def _pause() -> Any:
    with worker.fork_guard:
        from raydebug.worker import pause
    return pause
