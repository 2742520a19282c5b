"""The only place that prints: data on stdout, narration on stderr, rich or JSON."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import re
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from raydebug.errors import RaydebugError

MINUS = "\N{MINUS SIGN}"
PIPE_WIDTH = 200  # characters of a table where the output is no terminal
IDS = ("id", "ip", "job", "node", "pid", "worker")  # columns whose cells are copied into a command
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # ECMA-48 SGR, the only control sequence that a terminal may be sent
_SGR_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_MARKS = "\u061c\u200e\u200f"  # bidi marks that have the direction of a letter (UAX 9)
_BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


# A command in a sentence: its verb, and the rest of it.
_SUGGESTED = re.compile(r"\braydebug ((?:break|job) [a-z]+|(?!break|job)[a-z]+)\b(?=((?:(?!raydebug | -- )[^`;\n])*))")
OF_A_CLUSTER = (
    *("attach", "break", "check", "diagnose", "down", "job", "logs", "memory", "paused", "ps", "run", "snapshot"),
    *("stacks", "try", "up", "vscode"),
)  # verbs with the option --name
_suggested_options: dict[str, str] = {}  # by verb


class OutputLost(BaseException):
    """Standard output cannot be written: its reader has gone, or the device is full.

    Like KeyboardInterrupt it is no Exception: code that goes on after any failure of a connection must not go on after
    this one, and click must not take it for one of its own.
    """

    def __init__(self, errno: int | None, reason: str | None) -> None:
        super().__init__(reason)
        self.errno = errno


class _Stream(io.FileIO):
    """Standard output or standard error.

    Output raises OutputLost once, and drops what follows: its user may go on without it. Narration is dropped silently.
    """

    def __init__(self, descriptor: int, *, is_output: bool) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._raises = is_output

    def write(self, data: Any, /) -> int:
        """Write what can be written now, and return how many bytes that was."""
        try:
            return super().write(data)
        except OSError as error:
            if self._raises:
                self._raises = False
                raise OutputLost(error.errno, error.strerror) from None
            return len(data)


def take_streams() -> None:
    """Replace the standard streams by ones that end no session: whatever cannot be shown, written or read as text."""
    for wanted, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(wanted)
        except OSError:  # closed: the next file that is opened would become the stream; writing to output still fails
            os.open(os.devnull, flags)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - a descriptor
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        encoding = getattr(getattr(sys, name), "encoding", "utf-8")
        buffer = io.BufferedWriter(_Stream(descriptor, is_output=name == "stdout"))
        setattr(sys, name, io.TextIOWrapper(buffer, encoding, "replace", line_buffering=os.isatty(descriptor)))


def visible(text: str, *, keep: str = "\n\t") -> str:
    """Return text that came from a job with its control and bidi characters made visible.

    Args:
        text: anything a job produced: a value, a name, a log line.
        keep: control characters that pass as they are.
    """
    if text.isascii() and text.isprintable():
        return text

    def shown(c: str) -> str:
        is_control = unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")
        if c in keep or not (is_control or c in _MARKS or unicodedata.bidirectional(c) in _BIDI):
            return c
        return f"\\x{ord(c):02x}" if ord(c) < 0x100 else f"\\u{ord(c):04x}"

    return "".join(map(shown, text))


def command(*words: str) -> str:
    """Return words as one line for a shell and for people: quoted where a shell needs it, no control characters."""
    return visible(shlex.join(words), keep="")


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


def colour_wanted(stream: IO[str] | None = None) -> bool:
    """Return whether stdout, or another stream, is a terminal that may show colours (https://no-color.org)."""
    is_terminal = (stream or sys.stdout).isatty()
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Paint:
    """Wraps text in terminal colours, or leaves it alone."""

    def __init__(self, colour: bool = False) -> None:
        self.colour = colour

    @classmethod
    def for_stdout(cls) -> Paint:
        """Return colours where `colour_wanted`."""
        return cls(colour_wanted())

    def __call__(self, text: str, *styles: str) -> str:
        """Return `text` in the given styles (bold, dim, red, green, yellow, cyan)."""
        if not self.colour or not text:
            return text
        return f"\x1b[{';'.join(_SGR_CODES[style] for style in styles)}m{text}\x1b[0m"

    def code(self, lines: list[str]) -> list[str]:
        """Return lines of Python in colour, one for one."""
        if not self.colour or not lines:
            return lines
        from pygments import highlight  # 40 ms that a script does not need
        from pygments.formatters import TerminalFormatter
        from pygments.lexers import PythonLexer

        # Blank lines at the ends have to survive, or line numbers would shift.
        lexer = PythonLexer(stripnl=False, ensurenl=False)
        painted = highlight("\n".join(lines), lexer, TerminalFormatter()).split("\n")
        return painted[: len(lines)] if len(painted) >= len(lines) else lines


def duration(seconds: float | None, *, whole: bool = False) -> str:
    """Return a time span: `12 ms`, `3.21 s`, `42.0 s`, `3m12s`, `1h04m`, `2d03h`; `?` for None."""
    if seconds is None:
        return "?"
    seconds = round(seconds) if whole else seconds
    if seconds < 0:
        return MINUS + duration(-seconds, whole=whole)
    if seconds == 0 or (whole and seconds < 60):
        return f"{seconds:.0f} s"
    if seconds < 0.0995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours}h{minutes:02d}m" if hours < 48 else f"{hours // 24}d{hours % 24:02d}h"


def moment(epoch_s: float | None) -> str:
    """Return a point in time, in UTC; ? for None."""
    from datetime import UTC, datetime  # a millisecond that most verbs do without

    if epoch_s is None:
        return "?"
    try:
        return datetime.fromtimestamp(epoch_s, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return "?"


def out(text: str = "") -> None:
    """Print data on stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def out_raw(text: str) -> None:
    """Print data on stdout without a line end."""
    sys.stdout.write(text)
    sys.stdout.flush()


def out_json(document: Any) -> None:
    """Print one JSON document on stdout; JSON has no NaN and no infinity: they are "NaN", "Infinity", "-Infinity"."""
    out(json.dumps(_strict(document), indent=2 if sys.stdout.isatty() else None, default=str, allow_nan=False))


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    return [_strict(item) for item in value] if isinstance(value, (list, tuple)) else value


def suggest_for(cluster: str) -> None:
    """Say from now on `--name CLUSTER` in each command that a line of narration or an error suggests."""
    _suggest(OF_A_CLUSTER if cluster != "default" else (), f" --name {cluster}")


def suggest_at(address: str) -> None:
    """Say from now on `--address ADDRESS` in each suggested command that takes it."""
    _suggest(("attach", "paused"), f" --address {address}")


def _suggest(verbs: Sequence[str], option: str) -> None:
    _suggested_options.clear()
    _suggested_options.update(dict.fromkeys(verbs, option))


def suggested(text: str) -> str:
    """Return a text whose commands have the name of this verb's cluster, where they name none.

    >>> suggest_for("b")
    >>> suggested("see `raydebug ps`; next: raydebug attach next --name b, or `raydebug break add WHERE`")
    'see `raydebug ps --name b`; next: raydebug attach next --name b, or `raydebug break add --name b WHERE`'
    >>> suggest_for("default")
    """

    def named(found: re.Match[str]) -> str:
        is_named = any(option in found[2] for option in ("--name", "--address", "--help"))
        return found[0] if is_named else found[0] + _suggested_options.get(found[1].partition(" ")[0], "")

    return _SUGGESTED.sub(named, text) if _suggested_options else text


def say(text: str) -> None:
    """Print a line of narration on stderr: progress, next steps. It may quote a job: control characters are visible."""
    say_painted(visible(suggested(text)))


def say_painted(text: str) -> None:
    """Print narration in colours; what comes from a job in it has passed `visible`."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def error(failure: RaydebugError, *, as_json: bool = False) -> None:
    """Print the three lines of an error on stderr (with `--json`: the document, on stdout)."""
    failure.fix = suggested(failure.fix)
    if as_json:
        out_json(failure.as_json())
    else:
        for label, text in (("error", failure.what), ("cause", failure.cause), ("fix", failure.fix)):
            say(f"{label}: {visible(text)}")


def console(*, to_stderr: bool = False) -> Console:
    """Return a rich console; rich itself obeys NO_COLOR and pipes."""
    from rich.console import Console  # rich costs 50 ms; verbs that print one line do without

    return Console(stderr=to_stderr, highlight=False)


def table(columns: list[str], rows: list[list[str]], *, title: str = "", to_stderr: bool = False) -> None:
    """Print rows as a table on stdout (or stderr), no wider than the terminal where its ids leave room for it.

    An id stays whole, a command is cut to one line, other long cells are folded. rich draws none: importing it would be
    a quarter of the time of `raydebug paused`.
    """
    stream = sys.stderr if to_stderr else sys.stdout
    in_unicode = (stream.encoding or "utf-8").lower().startswith("utf")
    room = (shutil.get_terminal_size().columns if stream.isatty() else PIPE_WIDTH) - 3 * len(columns) + 1
    cells = [[visible(cell).expandtabs().split("\n") for cell in row] for row in [columns, *rows]]
    widths = [min(room, max(1, *map(_width, itertools.chain(*column)))) for column in zip(*cells, strict=True)]
    shrinking = [at for at, name in enumerate(columns) if name not in IDS]
    while sum(widths) > room and any(widths[at] > 1 for at in shrinking):
        widths[max(shrinking, key=widths.__getitem__)] -= 1
    lines: list[str] = []
    for row in cells:
        folded = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
        for at in (at for at, name in enumerate(columns) if name == "command" and folded[at][1:]):
            cut = "\N{HORIZONTAL ELLIPSIS}" if in_unicode else "~"
            folded[at] = [_folded(row[at], widths[at] - 1)[0] + cut]
        for parts in itertools.zip_longest(*folded, fillvalue=""):
            padded = (part + " " * (width - _width(part)) for part, width in zip(parts, widths, strict=True))
            lines.append("   ".join(padded).rstrip())
        if row is cells[0]:
            lines = [Paint(colour_wanted(stream))(line, "bold") for line in lines]
            ruled = sum(widths) + 3 * (len(widths) - 1)
            lines.append(("\N{BOX DRAWINGS LIGHT HORIZONTAL}" if in_unicode else "-") * ruled)
    lines = [*filter(None, [title]), "", *(f" {line}" for line in lines), ""]
    stream.write("".join(f"{line}\n" for line in lines))
    stream.flush()


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) != 0 for c in text)


def _folded(lines: list[str], width: int) -> list[str]:
    """Return the lines of a cell, those that are too wide folded, at a space where there is one."""
    folded = []
    for line in lines:
        while _width(line) > width:
            at = next(n for n in range(min(width, len(line)), 0, -1) if n == 1 or _width(line[:n]) <= width)
            space = line.rfind(" ", 1, at + 1)
            at = at if space < 0 else space
            folded.append(line[:at].rstrip())
            line = line[at:].lstrip()
        folded.append(line)
    return folded


@contextmanager
def phases(what: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner with the current phase; yield the function to call with each new phase."""
    if not sys.stderr.isatty():
        say(f"{what} ...")
        yield lambda phase: say(f"  {phase}")
        return
    with console(to_stderr=True).status(_plain(what)) as status:
        yield lambda phase: status.update(_plain(f"{what}: {phase}"))


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show a spinner on stderr while something takes its time; one plain line where stderr is no terminal."""
    with phases(what):
        yield


def _plain(text: str) -> Text:
    """Return a text for rich in which a bracket, such as that of a folder's name, is no markup."""
    from rich.text import Text

    return Text(visible(text, keep=""))
