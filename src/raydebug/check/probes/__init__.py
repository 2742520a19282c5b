"""Code that runs in the cluster's own Python: each module gathers the facts of one stage and judges nothing.

`python -m raydebug.check.probes REQUEST` (`__main__`) prints one line of JSON. `env` imports nothing heavy;
the others import the packages that they examine inside their functions.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

Facts: TypeAlias = dict[str, Any]  # a request, or the facts that answer it: JSON between two Pythons
MARK = "raydebug-check: "  # starts the line of the answer
BUSY_TIMES = 10  # on a busy machine a limit grows by the time spent waiting for a CPU, up to this factor
answer_end: int | None = None  # where a process of `__main__` answers


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Say what is done to the process that may end this one, in a line before the answer: since when, and what."""
    _tell(what)
    try:
        yield
    finally:
        _tell("")


def _tell(what: str) -> None:
    if answer_end is not None:
        os.write(answer_end, f"{time.monotonic()} {what}\n".encode())
