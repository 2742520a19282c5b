"""Tells the children of a Ray process which one they descend from, so that a pause of theirs can say it.

No variable of Ray's has a worker's ids, so a child (a subprocess, a fork, vLLM's engine) would know nothing of them. A
worker therefore writes them into its own environment before the first line of a task or an actor runs.

Source: ray 2.60.0 _private/function_manager.py:357 `FunctionActorManager.get_execution_info`; _raylet.pyx calls it
before the first run of each function in a worker, an actor's `__init__` and methods too. Held by
tests/ray/test_contracts.py and, in its effect, by test_cases.py.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from raydebug.worker import job_log, names, records


def tell_children(module: ModuleType) -> None:
    """Put it in place in Ray's freshly loaded function manager."""
    manager = module.FunctionActorManager
    manager.get_execution_info = _telling(manager.get_execution_info)


def _telling(find: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(find)
    def get_execution_info(*args: Any, **kwargs: Any) -> Any:
        found = find(*args, **kwargs)
        try:
            ids = records.describe_ray_process()
            if ids is not None:
                os.environ[names.ANCESTOR] = json.dumps(ids)
        except Exception as error:  # noqa: BLE001 - the task runs whatever happens to its debugger
            job_log.write(f"children of this process will not name it: {type(error).__name__}: {error}")
        return found

    return get_execution_info
