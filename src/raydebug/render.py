"""The only place that prints: data on stdout, narration on stderr, rich or JSON."""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from raydebug.errors import RaydebugError

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def visible(text: str, *, keep: str = "\n\t") -> str:
    """Return text that came from a job with its control and bidi characters made visible.

    Args:
        text: anything a job produced: a value, a name, a log line.
        keep: control characters that pass as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or not _hidden(c) else _escaped(c) for c in text)


def visible_log(text: str, *, colour: bool) -> str:
    """Return a piece of a job's log: colours pass (or are left out), every other control sequence is made visible.

    Args:
        text: the piece; a progress bar's carriage returns become line ends.
        colour: whether the reader can show colours.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    pieces = _COLOUR.split(text)
    colours = _COLOUR.findall(text) if colour else [""] * (len(pieces) - 1)
    return "".join(visible(piece) + shown for piece, shown in zip(pieces, [*colours, ""], strict=True))


def colour_wanted() -> bool:
    """Say whether stdout is a terminal that may show colours (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _hidden(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(c) in _BIDI


def _escaped(c: str) -> str:
    return f"\\x{ord(c):02x}" if ord(c) < 0x100 else f"\\u{ord(c):04x}"


def out(text: str = "") -> None:
    """Print data on stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def out_raw(text: str) -> None:
    """Print data on stdout without a line end."""
    sys.stdout.write(text)
    sys.stdout.flush()


def out_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    out(json.dumps(document, indent=2 if sys.stdout.isatty() else None, default=str))


def say(text: str) -> None:
    """Narrate on stderr: what is happening, what to type next."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def error(failure: RaydebugError, *, as_json: bool = False) -> None:
    """Print the three lines of an error on stderr (with `--json`: the document, on stdout)."""
    if as_json:
        out_json(failure.as_json())
    else:
        for label, text in (("error", failure.what), ("cause", failure.cause), ("fix", failure.fix)):
            say(f"{label}: {visible(text)}")


def console(*, to_stderr: bool = False) -> Console:
    """Return a rich console; rich itself obeys NO_COLOR and pipes."""
    from rich.console import Console  # rich costs 50 ms; verbs that print one line do without

    return Console(stderr=to_stderr, highlight=False)


def table(title: str | None, columns: list[str], rows: list[list[str]], *, to_stderr: bool = False) -> None:
    """Print rows as a table on stdout (or stderr); plain columns where that is no terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for name in columns:
        drawn.add_column(name, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(visible(cell)) for cell in row))
    target = console(to_stderr=to_stderr)
    if not (sys.stderr if to_stderr else sys.stdout).isatty():
        target.width = 200
    target.print(drawn)


@contextmanager
def phases(what: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner with what is waited for right now; give the function that is told each new phase."""
    if not sys.stderr.isatty():
        say(f"{what} ...")
        yield lambda phase: say(f"  {phase}")
        return
    with console(to_stderr=True).status(what) as status:
        yield lambda phase: status.update(f"{what}: {phase}")


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show a spinner on stderr while something takes its time; one plain line where stderr is no terminal."""
    if not sys.stderr.isatty():
        say(f"{what} ...")
        yield
        return
    with console(to_stderr=True).status(what):
        yield
