"""One command of the debugger, as data: names, usage, help, handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raydebug.console.debugger import Debugger


@dataclass(frozen=True)
class Command:
    """A command.

    Args:
        names: its name and aliases, pdb's own.
        usage, help: for `help`.
        run: what it does; returns what it prints.
        bare: it takes no argument (so `n + 1` cannot step by mistake).
        needs: what its argument is, when it cannot do without.
        of_all: it speaks of every rank at the prompt, so it is run once.
    """

    names: tuple[str, ...]
    usage: str
    help: str
    run: Callable[[Debugger, str], Awaitable[str]]
    bare: bool = False
    needs: str = ""
    of_all: bool = False
