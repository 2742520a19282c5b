"""The numbers of pauses and breakpoints: each is given once in the life of a cluster, whatever restarts.

A number is in a file before it is given, a breakpoint's with what it is. A gateway that starts again continues after
the last one, and a pause that its process reports again keeps its number. Where the file is lost or cannot be written,
numbers come from the clock: large ones, which no earlier gateway has given.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections import OrderedDict
from pathlib import Path
from typing import cast

from raydebug.protocol.records import BreakpointSpec
from raydebug.settings.files import atomic_write

PAUSE, BREAK, REMOVED = "p", "b", "r"
MAX_KNOWN = 10_000  # owners whose number is kept
MAX_DIGITS = 18  # of a number that a client names
LINE_BYTES = 64  # of a line of the file; a longer one counts as several


class Numbers:
    """All numbers that were given, and the breakpoints that are set: a process of a job does not say what they are.

    Args:
        path: the file, made empty with the cluster; None where there is none.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._last = {PAUSE: 0, BREAK: 0}
        self._of_owner: OrderedDict[str, int] = OrderedDict()
        self.breaks: dict[str, BreakpointSpec] = {}  # by id
        self._lines = 0
        try:
            self._read("" if path is None else path.read_text(encoding="ascii", errors="replace"))
        except OSError:
            path = None
        if path is None:
            self._last = dict.fromkeys(self._last, _clock_ms())

    def new(self, kind: str, about: str = "") -> int:
        """Return a number that was never given before, of a pause (`about` is its owner) or a breakpoint (what it is).

        It is kept together with that.
        """
        number = self._last[kind] + 1
        if not self._is_written(f"\n{kind} {number} {about}"):
            number = max(number, _clock_ms())
        self._note(kind, number, about)
        if self._path is not None and self._lines > 2 * MAX_KNOWN:
            self._shorten(self._path)
        return number

    def add_break(self, definition: BreakpointSpec) -> BreakpointSpec:
        """Keep a breakpoint, and return it with its id."""
        return self.breaks[f"b{self.new(BREAK, json.dumps(definition))}"]

    def remove_break(self, break_id: str) -> bool:
        """Forget a breakpoint; return whether there was one."""
        if (found := self.breaks.pop(break_id, None)) is not None:
            self._is_written(f"\n{REMOVED} {break_id[1:]} ")
        return found is not None

    def of_pause(self, instance: str, nth: int) -> int:
        """Return the number of a pause: a new one, or the one that it had when its process reported it before.

        Args:
            instance: id of its process.
            nth: which of the process's pauses it is.
        """
        # A digest: the process may send any text, and this goes into a file of lines.
        owner = hashlib.sha256(f"{instance} {nth}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return self._of_owner.get(owner) or self.new(PAUSE, owner)

    def was_given(self, number: str) -> bool:
        """Return whether a pause has had this number, in this gateway or an earlier one."""
        is_number = number.isascii() and number.isdecimal() and len(number) <= MAX_DIGITS
        return is_number and 0 < int(number) <= self._last[PAUSE]

    def _note(self, kind: str, number: int, about: str) -> None:
        self._lines += 1 + len(about) // LINE_BYTES
        if kind == REMOVED:
            self.breaks.pop(f"b{number}", None)
            return
        self._last[kind] = max(number, self._last[kind])
        if kind == BREAK and about:
            self.breaks[f"b{number}"] = cast(BreakpointSpec, json.loads(about) | {"id": f"b{number}"})
        elif about:
            self._of_owner[about] = number
            if len(self._of_owner) > MAX_KNOWN:
                self._of_owner.popitem(last=False)

    def _is_written(self, line: str) -> bool:
        if self._path is None:
            return True
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                return os.write(handle, line.encode()) == len(line)
            finally:
                os.close(handle)
        except OSError:
            return False

    def _read(self, text: str) -> None:
        for line in text.splitlines():
            with contextlib.suppress(ValueError):  # half a line, where the disk was full
                kind, number, about = line.split(" ", 2)
                if kind in (PAUSE, BREAK, REMOVED):
                    self._note(kind, int(number), about)

    def _shorten(self, path: Path) -> None:
        lines = [f"{kind} {number} " for kind, number in self._last.items()]
        lines += [f"{PAUSE} {number} {owner}" for owner, number in self._of_owner.items()]
        lines += [f"{BREAK} {break_id[1:]} {json.dumps(spec)}" for break_id, spec in self.breaks.items()]
        self._lines = len(lines)
        with contextlib.suppress(OSError):  # it stays long
            atomic_write(path, "\n".join(lines))


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000
