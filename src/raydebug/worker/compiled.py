"""Functions that torch.compile has taken: torch looks at every frame that they call, ours and the debugger's too."""

from __future__ import annotations

import contextlib
import sys
from types import FrameType, ModuleType

PASSED_OVER = ("debugpy", "raydebug")
GRAPH_NAME = "__compiled_fn_"  # how the code that torch puts in a function's place calls a graph: torch 2.13.0

_told: ModuleType | None = None


def pass_over() -> None:
    """Let torch.compile neither compile nor warn of what a pause runs; nothing where the process has not loaded it.

    Source: torch 2.13.0, _dynamo/trace_rules.py:3752, `add`: the folder of a package is skipped.
    """
    global _told
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None or rules is _told:
        return
    _told = rules
    with contextlib.suppress(Exception):  # of another torch: a warning in the log is no reason not to pause
        for package in PASSED_OVER:
            rules.add(package)


def is_compiled(frame: FrameType) -> bool:
    """Say whether a frame runs what torch.compile has made of its function: its variables are not all set there."""
    return any(name.startswith(GRAPH_NAME) for name in frame.f_code.co_names)
