"""The stacks that watchdogs wrote because the control threads of their processes could not run (worker/watchdog.py)."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from typing import Any

from raydebug.protocol import messages, records
from raydebug.protocol.listings import ListedStacks
from raydebug.protocol.records import StackFrame, ThreadStack

MAX_TEXT_BYTES = 64 * 1024  # the last ones: the main thread is at the end
READ_BYTES = 16 * 1024
MAX_THREADS = 100
# CPython 3.11 to 3.13, Python/traceback.c; 3.14 adds the thread's name. Non-ASCII characters are escaped.
_THREAD = re.compile(r"^(?:Current t|T)hread (0x[0-9a-f]{1,16})", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.{0,1024})", line (\d{1,9}|\?\?\?) in (.{0,1024})$', re.MULTILINE)
# Files in which threads wait without Python's lock, and files of the debugger.
_WAITS = re.compile(r"/(threading|selectors|queue|socket|ssl|connection|thread)\.py$")
_OURS = re.compile(r"/raydebug/worker/|/_?pydevd")


class Watchdogs:
    """The newest text of each process, by its instance."""

    def __init__(self) -> None:
        self._texts: dict[str, tuple[bytes, float]] = {}

    async def serve(self, about: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Receive the texts of one authenticated process until its connection ends.

        Raises:
            BadRecord: the description of the process is not as protocol/records.py says.
        """
        instance = records.read(about, records.ProcessRecord, "the process").get("instance", "")
        try:
            while data := await reader.read(READ_BYTES):
                before = b"" if messages.RUNS_AGAIN in data else self._texts.get(instance, (b"", 0.0))[0]
                fresh = data.rpartition(messages.RUNS_AGAIN)[2]
                self._texts[instance] = ((before + fresh)[-MAX_TEXT_BYTES:], time.monotonic())
        except OSError:
            pass
        finally:
            self._texts.pop(instance, None)
            writer.close()

    def complete(self, processes: Iterable[ListedStacks]) -> None:
        """Add the stacks that watchdogs wrote to the processes that do not answer."""
        for one in processes:
            text, at = self._texts.get(one["instance"], (b"", 0.0))
            if one["state"] == messages.SILENT and text:
                one["threads"] = parse(text.decode("ascii", "replace"))
                one["state"], one["age_s"] = messages.WATCHDOG, round(time.monotonic() - at, 1)


def parse(text: str) -> list[ThreadStack]:
    """Return the threads in a text of faulthandler, the likely holder of Python's lock first.

    >>> parse('Timeout (0:00:15)!\\nThread 0x00007f51 (most recent call first):\\n  File "a.py", line 3 in hold\\n')
    [{'name': 'MainThread', 'frames': [{'file': 'a.py', 'line': 3, 'function': 'hold'}]}]
    """
    found: list[ThreadStack] = []
    _, *parts = _THREAD.split(text)
    for ident, body in zip(parts[::2], parts[1::2], strict=True):
        frames: list[StackFrame] = [
            {"file": file, "line": int(line) if line.isdecimal() else 0, "function": function}
            for file, line, function in _FRAME.findall(body)
        ]
        if frames and not any(_OURS.search(one["file"]) for one in frames):
            found.append({"name": "MainThread" if ident == parts[-2] else f"thread {ident}", "frames": frames})
    found.reverse()
    return sorted(found, key=lambda one: bool(_WAITS.search(one["frames"][0]["file"])))[:MAX_THREADS]
