"""Hooks into torch: torch.compile passes over our code, and process groups wait longer for a paused process."""

from __future__ import annotations

import datetime
import functools
import inspect
import os
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from raydebug import worker
from raydebug.protocol import variables

if TYPE_CHECKING:  # these types cost each process 2 ms
    from raydebug.protocol.records import Watchdog

# torch.compile inspects every frame that it meets

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
    """Return whether a frame runs code made by torch.compile, where not all variables of the function are set."""
    return any(name.startswith(GRAPH_NAME) for name in frame.f_code.co_names)


# Timeouts of process groups

# Source: torch 2.11 and 2.13 distributed/distributed_c10d.py; device_mesh.py makes its groups by the last two.
MAKERS = ("init_process_group", "new_group", "split_group")
_MARK = "_raydebug_widens"

_group_limit_s: float | None = None


def widen_groups(module: ModuleType) -> None:
    """Raise the timeout of every new process group of `torch.distributed` to RAYDEBUG_GROUP_TIMEOUT_S; never lower it.

    The variable is read at each call: a process to fork from loads torch before it is set.
    """
    for name in MAKERS:
        make = getattr(module, name, None)
        if make is not None and not hasattr(make, _MARK):
            setattr(module, name, _widening(make))


def _widening(make: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(make)

    @functools.wraps(make)
    def make_group(*args: Any, **kwargs: Any) -> Any:
        global _group_limit_s
        seconds = os.environ.get(variables.GROUP_TIMEOUT, "")
        if not seconds.isdigit():
            return make(*args, **kwargs)
        wanted = datetime.timedelta(seconds=int(seconds))
        try:
            given = signature.bind(*args, **kwargs)
            asked = given.arguments.get("timeout")
            if asked is None or asked < wanted:
                given.arguments["timeout"] = wanted
            args, kwargs = given.args, given.kwargs
            _group_limit_s = max(wanted, asked or wanted).total_seconds()
        except TypeError as error:  # a call that torch itself will refuse, or another signature
            worker.log(f"the timeout of a process group is not widened: {error}")
        return make(*args, **kwargs)

    setattr(make_group, _MARK, True)
    return make_group


def nearest_watchdog() -> Watchdog | None:
    """Return the timeout that ends this process first while it is paused."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        return None
    limits: list[tuple[float, str]] = []
    if _group_limit_s is not None:
        limits.append((_group_limit_s, "torch process group"))
    heartbeat = os.environ.get(variables.NCCL_HEARTBEAT, "")
    if heartbeat.isdigit() and distributed.get_backend() == "nccl":
        limits.append((float(heartbeat), variables.NCCL_HEARTBEAT))
    return {"name": min(limits)[1], "after_s": min(limits)[0]} if limits else None
