"""Where this package speaks inside the user's processes: single lines on stderr, which Ray takes to the job's log."""

from __future__ import annotations

import sys


def write(text: str) -> None:
    """Write a line to the job's log; a closed stderr is no reason to fail the job."""
    try:
        sys.stderr.write(f"raydebug: {text}\n")
        sys.stderr.flush()
    except Exception:  # noqa: BLE001 - whatever a program has put there; contextlib would cost each start of Python 4 ms
        pass
