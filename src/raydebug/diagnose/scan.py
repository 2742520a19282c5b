"""Find the few lines of a log that a rule may explain, at the speed of a text search.

Every pattern has literal texts that each of its matches contains. One RE2 set of these looks at 64 KiB at a time; only
blocks that contain all of a pattern are split into lines, and only such lines meet a regular expression of Python.
Healthy parts of a log are skipped unread, so that 10 GB need no more memory than 10 MB.
"""

from __future__ import annotations

import gzip
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from raydebug.diagnose.read import Line, read_lines

BLOCK_BYTES = 64 * 1024
LINE_BYTES = 1024 * 1024  # a longer line is cut into blocks
MAX_LINES = 300_000  # that are kept of all logs
MAX_OF_PATTERN = 500  # lines that are kept for one pattern: a million equal lines say no more than these
AROUND = 60  # lines that are kept before and after each
MIN_LITERAL = 3  # bytes
MAX_CLAUSES = 3  # of a pattern
SET_BYTES = 256 * 1024 * 1024  # limit of RE2 for its automaton; it takes what it needs

_parse: Any = re._parser.parse  # type: ignore[attr-defined]  # CPython 3.11 to 3.13: re/_parser.py


def clauses(pattern: str) -> tuple[frozenset[str], ...]:
    """Return what is in every match of a pattern: of each set one text, in lower case."""
    found = _of_sequence(_parse(pattern))
    return tuple(sorted(found, key=lambda one: -min(map(len, one))))[:MAX_CLAUSES]


def _of_sequence(items: Any) -> list[frozenset[str]]:
    found: list[frozenset[str]] = []
    run = ""
    for operator, value in [*items, (None, None)]:
        name = str(operator)
        if name == "LITERAL":
            run += chr(value).lower()
            continue
        if len(run.encode()) >= MIN_LITERAL:
            found.append(frozenset((run,)))
        run = ""
        if name == "SUBPATTERN":
            found += _of_sequence(value[-1])
        elif name in ("MAX_REPEAT", "MIN_REPEAT") and value[0] >= 1:
            found += _of_sequence(value[2])
        elif name == "BRANCH":
            found += _of_branches([_of_sequence(branch) for branch in value[1]])
    return found


def _of_branches(branches: list[list[frozenset[str]]]) -> list[frozenset[str]]:
    """Return what is in a match whichever branch it takes: one text of the best clause of each."""
    if not all(branches):
        return []
    best = [max(branch, key=lambda one: min(map(len, one))) for branch in branches]
    return [frozenset[str]().union(*best)]


class Prefilter:
    """Says which of some patterns may match a text, by the literal texts that are in every match of each.

    Args:
        patterns: regular expressions.
        marks: further ones, which a healthy run matches all the time: of their lines only the last one is of interest.

    Attributes:
        marks: the numbers of these.

    Raises:
        ValueError: a pattern has no literal text.
    """

    def __init__(self, patterns: Sequence[str], marks: Sequence[str] = ()) -> None:
        import re2  # google-re2: 40 ms, and only this verb needs it

        options = re2.Options()
        options.literal, options.case_sensitive = True, False
        options.encoding = re2.Options.Encoding.LATIN1
        options.max_mem = SET_BYTES
        self._set = re2.Set.SearchSet(options)
        self._of_literal: list[list[tuple[int, int]]] = []  # by literal: patterns and their clauses
        self._count: list[int] = []  # by pattern: its clauses
        ids: dict[str, int] = {}
        self.marks = frozenset(range(len(patterns), len(patterns) + len(marks)))
        for number, pattern in enumerate([*patterns, *marks]):
            needed = clauses(pattern)
            if not needed:
                raise ValueError(f"no literal text is in every match of {pattern!r}")
            self._count.append(len(needed))
            for clause, texts in enumerate(needed):
                for text in texts:
                    if text not in ids:
                        ids[text] = self._set.Add(text.encode("utf-8"))
                        self._of_literal.append([])
                    self._of_literal[ids[text]].append((number, clause))
        self._set.Compile()
        self._of_literals = lru_cache(10_000)(self._of)  # lines of one kind have the same literals

    def find(self, text: bytes) -> set[int]:
        """Return the numbers of the patterns that may match a text, or one line of it."""
        literals = self._set.Match(text)  # None where nothing matches
        return set(self._of_literals(tuple(literals))) if literals else set()

    def _of(self, literals: tuple[int, ...]) -> tuple[int, ...]:
        met: dict[int, set[int]] = {}
        for literal in literals:
            for number, clause in self._of_literal[literal]:
                met.setdefault(number, set()).add(clause)
        return tuple(number for number, found in met.items() if len(found) == self._count[number])


@dataclass
class Kept:
    """The lines of some logs that are worth a look, in order, and how much there was in all."""

    lines: list[Line] = field(default_factory=list)
    read_lines: int = 0
    read_bytes: int = 0
    cut: bool = False  # more was worth a look than is kept


def open_bytes(path: Path) -> IO[bytes]:
    """Open a log, also one that gzip has compressed.

    Raises:
        OSError: it cannot be read; the error names it.
    """
    file = path.open("rb")
    try:
        if not file.peek(2).startswith(b"\x1f\x8b"):  # RFC 1952, 2.3.1; a pipe can be opened only once
            return file
    except OSError as error:
        file.close()
        raise OSError(error.errno, error.strerror, str(path)) from error
    file.close()
    return gzip.open(path, "rb")  # type: ignore[return-value]


def read_log(file: IO[bytes], source: str, wanted: Prefilter, kept: Kept) -> None:
    """Read a log to its end, and keep the lines that a pattern may match, each with the lines around it.

    Args:
        file: the log.
        source: its name, for messages.
        wanted: finds the lines.
        kept: receives them.

    Raises:
        OSError: it cannot be read.
    """
    seen: Counter[int] = Counter()
    before: deque[tuple[int, bytes]] = deque(maxlen=AROUND)
    keep_to = last = 0
    mark: tuple[int, bytes] | None = None

    def keep(rows: Iterable[tuple[int, bytes]]) -> None:
        nonlocal last
        for number, line in rows:
            if number > last:
                kept.lines += read_lines([line.decode("utf-8", "replace")], source, first=number)
                last = number

    for first, block in _blocks(file):
        kept.read_bytes += len(block)
        lines = block.removesuffix(b"\n").split(b"\n")
        kept.read_lines += len(lines)
        found = {one for one in wanted.find(block) if seen[one] < MAX_OF_PATTERN}
        if found <= wanted.marks and first > keep_to:
            if found:
                rows = enumerate(reversed(lines), 1)
                mark = next(
                    ((first + len(lines) - back, line) for back, line in rows if found & wanted.find(line)), mark
                )
            before.extend(list(enumerate(lines[-AROUND:], first + max(0, len(lines) - AROUND))))
            continue
        for number, line in enumerate(lines, first):
            ids = found & wanted.find(line) if found else found
            if ids and ids <= wanted.marks:
                mark = (number, line)
            elif ids:
                seen.update(ids - wanted.marks)
                kept.cut = kept.cut or len(kept.lines) >= MAX_LINES
                if not kept.cut:
                    keep([mark, *before] if mark is not None and before and mark[0] < before[0][0] else before)
                    before.clear()
                    keep_to = number + AROUND
            if number <= keep_to:
                keep([(number, line)])
            else:
                before.append((number, line))
    if mark is not None:
        keep([mark])


def _blocks(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines, each with the number of its first line."""
    number, rest = 1, b""
    while data := file.read(BLOCK_BYTES):
        data = rest + data
        end = data.rfind(b"\n") + 1
        if not end and len(data) < LINE_BYTES:
            rest = data
            continue
        block, rest = (data[:end], data[end:]) if end else (data, b"")
        yield number, block
        number += block.count(b"\n")
    if rest:
        yield number, rest
