"""Debuggers that read commands from stdin: in a process whose stdin gives none, they stop as `breakpoint()` does.

Source: CPython 3.11 to 3.13 bdb.py, pdb.py (`post_mortem` calls `interaction` without a frame, from 3.13 on with the
exception), code.py. Those of ipdb, IPython and torch are subclasses of Pdb; IPython 8 and 9 terminal/embed.py.
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
    """Let `set_trace` and `post_mortem` of pdb and its subclasses pause where no command can come."""
    plain, plain_interaction = module.Pdb.set_trace, module.Pdb.interaction

    def set_trace(self: Any, frame: FrameType | None = None, **options: Any) -> None:
        frame = frame or sys._getframe(1)
        if _can_read(self):
            plain(self, frame, **options)
        else:
            _pause(frame)

    def interaction(self: Any, frame: FrameType | None, given: Any) -> None:
        error = given if isinstance(given, BaseException) else sys.exc_info()[1] or getattr(sys, "last_value", None)
        if frame is not None or error is None or _can_read(self):
            plain_interaction(self, frame, given)
            return
        with worker.fork_guard:
            from raydebug.worker import pause
        pause.pause_on_error(type(error), error, error.__traceback__)

    module.Pdb.set_trace, module.Pdb.interaction = set_trace, interaction


def hook_console(module: ModuleType) -> None:
    """Let `code.interact` pause where no command can come."""
    plain = module.interact

    def interact(banner: Any = None, readfunc: Any = None, *arguments: Any, **options: Any) -> None:
        if readfunc is not None or _can_read(None):
            plain(banner, readfunc, *arguments, **options)
        else:
            _pause(sys._getframe(1))

    worker.replace(module, "interact", interact)


def hook_ipython(module: ModuleType) -> None:
    """Let `IPython.embed` pause in a process that begins without commands; elsewhere it looks at who calls it."""
    if not _can_read(None):
        worker.replace(module, "embed", lambda **_options: _pause(sys._getframe(1)))


def _pause(frame: FrameType) -> None:
    with worker.fork_guard:
        from raydebug.worker import pause
    pause.pause_at(frame, kind="breakpoint")


def _can_read(debugger: Any) -> bool:
    """Return whether breakpoints are not ours, or a reader of stdin gets something; a pdb may read files of its own."""
    is_ours = worker.debugger_is_ours() and os.environ.get(variables.OPEN) != "1"
    if not is_ours or not getattr(debugger, "use_rawinput", 1):
        return True
    try:
        number = sys.stdin.fileno()
        if os.isatty(number):  # a worker has inherited it from whoever started Ray
            return os.tcgetpgrp(number) == os.getpgrp()
        return not os.path.samestat(os.fstat(number), os.stat(os.devnull))
    except io.UnsupportedOperation:  # a text that the program gives
        return True
    except (AttributeError, OSError, ValueError):  # none, closed
        return False
