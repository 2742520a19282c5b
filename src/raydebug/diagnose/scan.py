"""Find the few lines of a log that a rule may explain, at the speed of a text search.

The prefilter looks at about 100 lines at a time; only blocks that contain all texts of a pattern are split into lines,
and only such lines meet a regular expression of Python. A pattern that has reached its quota of lines opens no block
any more: of it only the last block is remembered. So a log of one error after another costs little more than a healthy
one, and 10 GB need no more memory than 10 MB.

A progress bar writes its states behind carriage returns: of such a line the states that a pattern may match are kept,
and the last. A line may have no end: it is looked at in pieces, and of a long one the places that a pattern may match
are kept.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from io import BufferedIOBase
from typing import TypeAlias

from raydebug.diagnose.prefilter import Prefilter
from raydebug.diagnose.read import MAX_LINE_CHARS, Line, read_line, texts_of_json

READ_BYTES = 1024 * 1024
BLOCK_BYTES = 8 * 1024  # smaller: a call of RE2 costs as much as 300 bytes; larger: more blocks have all of a pattern
LINE_BYTES = 64 * 1024  # a longer line is cut; the last block of each pattern is remembered, so 1 MB would be 1 GB
OVERLAP_BYTES = 500  # of two pieces of a line: what is at the cut is whole in one of them
ALIKE = 3  # parts of a line that the same patterns may match, and that are kept
MAX_LINES = 300_000  # that are kept of all logs
MAX_KEPT_BYTES = 64 * 1024 * 1024
WEIGHED_LINES = 10_000  # after which the kept bytes are counted again
MAX_OF_PATTERN = 30  # first lines that are kept for one pattern, and the last: a million equal ones say no more
LAST_BLOCKS = 4
AROUND = 60  # lines that are kept before and after each


@dataclass
class Kept:
    """The lines of some logs that are worth a look, in order, and how much there was in all."""

    lines: list[Line] = field(default_factory=list)
    read_lines: int = 0
    read_bytes: int = 0
    kept_bytes: int = 0
    cut: bool = False  # more was worth a look than is kept
    notes: list[str] = field(default_factory=list)  # for the user: what was not read, and why


Stop: TypeAlias = Callable[[], str]
"""Asked from time to time while logs are read and judged: a reason ends that, and becomes a note."""


def never() -> str:
    """Say that the work may go on."""
    return ""


def read_log(file: BufferedIOBase, source: str, wanted: Prefilter, kept: Kept, stop: Stop = never) -> None:
    """Read a log to its end, and keep the lines that a pattern may match, each with the lines around it.

    Raises:
        OSError: it cannot be read; what has been read until then is kept.
    """
    log = _Log(wanted, MAX_LINES - len(kept.lines), MAX_KEPT_BYTES - kept.kept_bytes)
    try:
        for block in _blocks(_chunks(file, kept, stop)):
            kept.read_lines += block.ends
            log.take(block)
    finally:
        log.take_last()
        kept.cut = kept.cut or log.is_full
        for at in sorted(log.rows):
            _, number, text = log.rows[at]
            kept.kept_bytes += len(text)
            for part in text.decode("utf-8", "replace").split("\r"):
                kept.lines += read_line(part, source, number)


Row: TypeAlias = tuple[int, int, bytes]  # its place among the rows of a log, the number of its line, its text


@dataclass(frozen=True, slots=True)
class _Block:
    """Some rows of a log: lines, of which the first may begin, and the last may end, in another block."""

    first: int  # place of its first row
    number: int  # of the first row's line, from 1
    ends: int  # line ends in it
    text: bytes

    @property
    def count(self) -> int:
        """Number of its rows."""
        return self.ends + (not self.text.endswith(b"\n"))

    def rows(self, wanted: Prefilter) -> list[Row]:
        """Return its rows; of long ones what may be of interest, with a CR between the parts."""
        texts = self.text.removesuffix(b"\n").split(b"\n")
        if b"\r" in self.text or len(max(texts, key=len)) > MAX_LINE_CHARS:
            texts = [_shorten(text, wanted) for text in texts]
        return list(zip(itertools.count(self.first), itertools.count(self.number), texts))


def _shorten(line: bytes, wanted: Prefilter) -> bytes:
    """Return the parts of a line that a pattern may match, and the last state of a progress bar, with a CR between."""
    inside = texts_of_json(line.decode("utf-8", "replace")) if len(line) > MAX_LINE_CHARS else []
    if inside:
        return b"\r".join(_cut(text.encode("utf-8", "replace"), wanted) for text in inside)
    states = [state for state in line.split(b"\r") if state.strip()]
    return b"\r".join(_cut(state, wanted) for state in [*_of_interest(states[:-1], wanted), *states[-1:]])


def _cut(part: bytes, wanted: Prefilter) -> bytes:
    """Return a text that is short enough, or of a longer one the places that a pattern may match, else its start."""
    if len(part) <= MAX_LINE_CHARS:
        return part
    pieces = [part[at : at + MAX_LINE_CHARS] for at in range(0, len(part), MAX_LINE_CHARS - OVERLAP_BYTES)]
    return b"\r".join(_of_interest(pieces, wanted) or pieces[:1])


def _of_interest(parts: Iterable[bytes], wanted: Prefilter) -> list[bytes]:
    """Return the parts that a pattern may match; a few of those that are alike."""
    seen: Counter[frozenset[int]] = Counter()
    kept = []
    for part in parts:
        if ids := wanted.find(part).difference(wanted.marks):
            seen[ids] += 1
            if seen[ids] <= ALIKE:
                kept.append(part)
    return kept


class _Log:
    """What is kept of one log: `rows` by place, until a limit of lines or bytes is reached, and it `is_full`."""

    def __init__(self, wanted: Prefilter, limit: int, limit_bytes: int) -> None:
        self.rows: dict[int, Row] = {}
        self.is_full = False
        self._limit, self._limit_bytes, self._next_weighing = limit, limit_bytes, min(limit, WEIGHED_LINES)
        self._wanted = wanted
        self._seen: Counter[int] = Counter()  # by pattern: its lines
        self._at_limit = set[int]()  # patterns that have reached MAX_OF_PATTERN; all, once the log is full
        self._last: dict[int, _Block] = {}  # by such pattern: the last block that it may match
        # A mark may match what is none; so the last blocks of each are remembered.
        self._marks = frozenset(wanted.marks)
        self._of_mark = {mark: deque[_Block](maxlen=LAST_BLOCKS) for mark in wanted.marks}
        self._behind: deque[_Block] = deque()  # the last blocks, with AROUND lines or more
        self._keep_to = 0

    def take(self, block: _Block) -> None:
        """Keep what a block has."""
        patterns = self._wanted.find(block.text)
        for mark in patterns & self._marks:
            self._of_mark[mark].append(block)
        self._last.update(dict.fromkeys(patterns & self._at_limit, block))
        if fresh := patterns - self._at_limit - self._marks:
            self._take_lines(block, fresh)
        elif block.first <= self._keep_to:
            self.rows.update((row[0], row) for row in block.rows(self._wanted) if row[0] <= self._keep_to)
        self._behind.append(block)
        while block.first - self._behind[0].first - self._behind[0].count >= AROUND:
            self._behind.popleft()

    def _take_lines(self, block: _Block, fresh: frozenset[int]) -> None:
        """Keep the lines that some patterns may match, and those around them."""
        before = deque([row for earlier in self._behind for row in earlier.rows(self._wanted)], maxlen=AROUND)
        for row in block.rows(self._wanted):
            if ids := fresh & self._wanted.find(row[2]):
                self._keep_to = row[0] + AROUND
                self.rows.update((earlier[0], earlier) for earlier in before)
                self._seen.update(ids)
                self._at_limit.update(pattern for pattern in ids if self._seen[pattern] >= MAX_OF_PATTERN)
            if row[0] <= self._keep_to:
                self.rows[row[0]] = row
            before.append(row)
        if len(self.rows) >= self._next_weighing:
            self._next_weighing = min(self._limit, len(self.rows) + WEIGHED_LINES)
            if len(self.rows) >= self._limit or sum(len(row[2]) for row in self.rows.values()) >= self._limit_bytes:
                self.is_full = True
                self._at_limit.update(self._wanted.numbers - self._marks)

    def take_last(self) -> None:
        """Keep the last line of each pattern that has reached MAX_OF_PATTERN, with those around it in its block."""
        of_block: dict[int, set[int]] = {}
        for pattern, block in self._last.items():
            of_block.setdefault(block.first, set()).add(pattern)
        for block in {block.first: block for block in self._last.values()}.values():
            rows, patterns = block.rows(self._wanted), of_block[block.first]
            for at in reversed(range(len(rows))):
                ids = patterns & self._wanted.find(rows[at][2])
                around = rows[max(0, at - AROUND) : at + AROUND + 1] if ids else ()
                self.rows.update((row[0], row) for row in around)
                patterns -= ids
        for mark in self._marks:
            self._take_mark(mark, self._wanted.marks[mark])

    def _take_mark(self, number: int, mark: re.Pattern[str]) -> None:
        """Keep the last line that a mark matches."""
        for block in reversed(self._of_mark[number]):
            for row in reversed(block.rows(self._wanted)):
                if number in self._wanted.find(row[2]) and any(map(mark.search, _texts(row[2]))):
                    self.rows[row[0]] = row
                    return


@lru_cache(1000)  # the marks are looked for in the same blocks
def _texts(line: bytes) -> list[str]:
    """Return the texts of a line without their prefixes."""
    states = line.decode("utf-8", "replace").split("\r")
    return [line.text for state in states for line in read_line(state, "", 0)]


def _chunks(file: BufferedIOBase, kept: Kept, stop: Stop) -> Iterator[bytes]:
    """Yield the bytes of a file until it ends, or something stops the reading."""
    while not stop() and (data := file.read1(READ_BYTES)):  # read would lose what is before a fault of an archive
        kept.read_bytes += len(data)
        yield data


def _blocks(chunks: Iterable[bytes]) -> Iterator[_Block]:
    """Yield the rows of a file. A row ends with its line, at a CR where no line ends, or where a piece is too long."""
    first, number, data = 1, 1, b""
    for more in chunks:
        data += more
        start = 0
        while len(data) - start >= BLOCK_BYTES:
            end = _end_of_block(data, start)
            if not end and len(data) - start < LINE_BYTES:
                break
            text = data[start : end or start + LINE_BYTES]
            yield (block := _Block(first, number, text.count(b"\n"), text))
            first, number = first + block.count, number + block.ends
            start += len(text) - (0 if end else OVERLAP_BYTES)
        data = data[start:]
    if data:
        yield _Block(first, number, data.count(b"\n") + (not data.endswith(b"\n")), data)


def _end_of_block(data: bytes, start: int) -> int:
    """Return where a block that starts here ends; 0 if no row ends soon."""
    end = start + BLOCK_BYTES
    if inside := data.rfind(b"\n", start, end) + 1 or data.rfind(b"\r", start, end) + 1:
        return inside
    behind = [at for mark in (b"\n", b"\r") if (at := data.find(mark, end, start + LINE_BYTES)) >= 0]
    return min(behind, default=-1) + 1
