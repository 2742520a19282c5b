"""What a breakpoint set from outside calls when the program reaches it."""

from __future__ import annotations

import sys

from raydebug.worker import startup


def at(where: str) -> None:
    """Pause the calling frame for the breakpoint `where` (as the user wrote it)."""
    if startup.debugger_is_ours():
        from raydebug.worker import pause

        pause.pause_at(sys._getframe(1), kind="breakpoint", where=where)
