"""Colour for the debugger's screens; never the only signal."""

from __future__ import annotations

import os
import sys

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Paint:
    """Wraps text in terminal colours, or leaves it alone.

    Args:
        colour: whether the reader is a terminal that wants colour.
    """

    def __init__(self, colour: bool = False) -> None:
        self.colour = colour

    @classmethod
    def for_stdout(cls) -> Paint:
        """Return colours when stdout is a terminal, NO_COLOR is unset (https://no-color.org) and TERM is not dumb."""
        return cls(sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")

    def __call__(self, text: str, *styles: str) -> str:
        """Return `text` in the given styles (bold, dim, red, green, yellow, cyan)."""
        if not self.colour or not text:
            return text
        return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"

    def code(self, lines: list[str]) -> list[str]:
        """Return lines of Python in colour, one for one."""
        if not self.colour or not lines:
            return lines
        from pygments import highlight  # 40 ms that a script does not need
        from pygments.formatters import TerminalFormatter
        from pygments.lexers import PythonLexer

        # Blank lines at the ends have to survive, or line numbers would shift.
        painted = highlight("\n".join(lines), PythonLexer(stripnl=False, ensurenl=False), TerminalFormatter()).split(
            "\n"
        )
        return painted[: len(lines)] if len(painted) >= len(lines) else lines
