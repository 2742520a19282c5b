"""Keep our code and the debugger out of the graphs of torch.compile, which inspects every frame that it meets."""

from __future__ import annotations

from types import FrameType, ModuleType
from typing import Any

PASSED_OVER = ("debugpy", "raydebug")
NO_GRAPH = (
    "a breakpoint of raydebug's cannot be part of a graph, and fullgraph=True allows nothing beside it: "
    "remove it, or set TORCH_COMPILE_DISABLE=1, for vLLM enforce_eager"
)
GRAPH_NAME = "__compiled_fn_"  # how the code that replaces a compiled function calls a graph: torch 2.13.0


def keep_out(rules: ModuleType, functions: tuple[Any, ...]) -> None:
    """Let torch.compile neither compile nor warn about our breakpoints and the code that a pause runs.

    A function with a counter would be compiled again for each count.

    Args:
        rules: torch._dynamo.trace_rules, just loaded.
        functions: those of ours that the user's code calls.

    Source: torch 2.13.0, _dynamo/trace_rules.py:3752: `add` skips a package's folder; symbolic_convert.py:5737: the
    attributes that torch.compiler.disable sets, of which the second is shown if the graph must not break.
    """
    for function in functions:
        function._torchdynamo_disable, function._torchdynamo_disable_msg = True, NO_GRAPH
    for package in PASSED_OVER:
        rules.add(package)


def is_compiled(frame: FrameType) -> bool:
    """Say whether a frame runs code made by torch.compile, where not all variables of the function are set."""
    return any(name.startswith(GRAPH_NAME) for name in frame.f_code.co_names)
