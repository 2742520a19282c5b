"""The file of a trace, and who can read it."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import NamedTuple

from raydebug.errors import UsageError
from raydebug.runs.timeline import Recorded
from raydebug.settings.files import atomic_write, write_named
from raydebug.trace.chrome import encode
from raydebug.trace.lanes import groups_of

FILE = "trace.json.gz"  # in the run's folder


class Written(NamedTuple):
    """A trace that was written."""

    path: Path
    bytes: int
    lanes: int
    events: int


def write_trace(recorded: Recorded, output: Path | None = None) -> Written:
    """Write the trace of a run; a file whose name ends in .gz is compressed.

    Raises:
        RaydebugError: the file cannot be written.
    """
    groups = groups_of(recorded)
    path = (output or recorded.run.folder / FILE).absolute()
    data = encode(groups, recorded.start)
    if path.name.endswith(".gz"):
        data = gzip.compress(data, 6, mtime=0)
    try:
        (atomic_write if output is None else write_named)(path, data)
    except OSError as error:
        raise UsageError(
            "the trace cannot be written", cause=f"{path}: {error.strerror or error}",
            fix="name a file that can be: `raydebug trace -o FILE`", code="trace.unwritable",
        ) from error  # fmt: skip
    lanes = [lane for group in groups for lane in group.lanes]
    return Written(path, len(data), len(lanes), sum(len(lane.events) for lane in lanes))
