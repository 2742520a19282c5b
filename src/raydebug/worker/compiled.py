"""Functions that torch.compile has taken: torch looks at every frame that they call, ours and the debugger's too."""

from __future__ import annotations

from types import FrameType, ModuleType
from typing import Any

PASSED_OVER = ("debugpy", "raydebug")
NO_GRAPH = (
    "a breakpoint of raydebug's cannot be part of a graph, and fullgraph=True allows nothing beside it: "
    "remove it, or set TORCH_COMPILE_DISABLE=1, for vLLM enforce_eager"
)
GRAPH_NAME = "__compiled_fn_"  # how the code that torch puts in a function's place calls a graph: torch 2.13.0


def stay_out(rules: ModuleType) -> None:
    """Let torch.compile neither compile nor warn of our breakpoints and of what a pause runs.

    What counts, torch would compile anew for each count.

    Args:
        rules: torch._dynamo.trace_rules, just loaded.

    Source: torch 2.13.0, _dynamo/trace_rules.py:3752: `add` has a package's folder skipped; symbolic_convert.py:5737:
    the attributes that torch.compiler.disable sets, of which the second is said where there must be one graph.
    """
    from raydebug.worker import sites, startup

    ours: tuple[Any, ...] = (startup.code_breakpoint, sites.Site.at, sites.Site.is_due, sites.Site.say)
    for function in ours:
        function._torchdynamo_disable, function._torchdynamo_disable_msg = True, NO_GRAPH
    for package in PASSED_OVER:
        rules.add(package)


def is_compiled(frame: FrameType) -> bool:
    """Say whether a frame runs what torch.compile has made of its function: its variables are not all set there."""
    return any(name.startswith(GRAPH_NAME) for name in frame.f_code.co_names)
