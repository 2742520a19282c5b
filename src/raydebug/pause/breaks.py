"""`--break WHERE` from the command line: what it names, asked in the cluster before the job starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from raydebug.cluster.place import Place
from raydebug.errors import Exit, RaydebugError

Break = dict[str, Any]


def resolve_breaks(wheres: list[str], *, place: Place, working_dir: Path) -> list[Break]:
    """Return what each WHERE names, for the processes of a job.

    Args:
        wheres: `file.py:LINE`, `file.py:function`, `package.module:function` or `package.module:Class.method`.
        place: where the cluster's Python is.
        working_dir: where the job runs, on this machine.

    Raises:
        RaydebugError: one of them names nothing.
    """
    if not wheres:
        return []
    answer = place.run_python(["-m", "raydebug.worker.locate", *wheres], working_dir)
    found: list[Break] = json.loads(answer.strip().splitlines()[-1])
    for one in found:
        if "cause" in one:
            raise RaydebugError(
                f"--break {one['where']} names nothing",
                cause=one["cause"],
                fix=one["fix"],
                code="break.nothing",
                exit_code=Exit.USAGE,
            )
    return found
