"""Lines of source files, read in the process that runs them: stacks, listings and snapshots show no other lines."""

from __future__ import annotations

import functools
import linecache
import os
import stat

from raydebug.protocol.secrets import scrubbed

MAX_BYTES = 4_000_000  # of a file
MAX_TEXT = 200  # characters of one line


def lines_of(path: str) -> list[str]:
    """Return the lines of a source file; none if it is not a regular file or a very large one.

    The path may be any text, as `compile` accepts any.
    """
    if path not in linecache.cache:
        try:
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
                return []
        except ValueError:  # a path with a zero byte
            return []
        except OSError:  # not there: Python's module looks along sys.path
            pass
    return linecache.getlines(path)  # without module globals, which may have a loader of the user's


@functools.lru_cache(4096)
def line_at(path: str, line: int) -> str:
    """Return one line without its indent and without secrets; empty if there is none."""
    lines = lines_of(path)
    return scrubbed(lines[line - 1].strip(), source=True)[:MAX_TEXT] if 0 < line <= len(lines) else ""
