"""The reward function of a command, imported and tried on the first rows as verl would call it."""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
import os
from pathlib import Path
from typing import Any

from raydebug.check.inside.__main__ import describe

SOLUTION = "The answer is 1."  # stands for what a model generates
CALL_LIMIT_S = 5.0


def try_out(config: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how the reward function did.

    Source: verl 0.9.1 experimental/reward_loop/reward_manager/naive.py run_single (the call), trainer/ppo/reward.py
    get_custom_reward_fn, experimental/reward_loop/reward_loop.py:59 (the older key wins where it is set).
    """
    older, newer = config.get("custom_reward_function") or {}, config.get("reward", {}).get("custom_reward_function")
    said = older if older.get("path") else newer or {}
    path, name = said.get("path"), said.get("name") or "compute_score"
    manager = (config.get("reward", {}).get("reward_manager") or {}).get("name", "naive")
    found: dict[str, Any] = {"path": path, "name": name, "manager": manager, "calls": []}
    if not path and (config.get("reward", {}).get("reward_model") or {}).get("enable"):
        return {**found, "skipped": "a reward model scores"}
    try:
        function = _load(str(path), name, found) if path else _verls_own()
    except Exception as failure:  # noqa: BLE001 - the user's own code
        return {**found, "import": describe(failure)}
    if function is None:
        return found
    extra = dict(said.get("reward_kwargs") or {})
    for index, row in enumerate(rows):
        found["calls"].append({"row": index, "source": row.get("data_source"), **_call(function, row, extra)})
    return found


def _load(path: str, name: str, found: dict[str, Any]) -> Any:
    """Return the function as verl 0.9.1 utils/import_utils.py load_extern_object would; None where it is not there."""
    import importlib
    import importlib.util

    if path.startswith("pkg://"):
        module = importlib.import_module(path.removeprefix("pkg://").replace("/", "."))
    else:
        file = Path(path.removeprefix("file://"))
        if not file.is_file():
            found["missing"] = str(file)
            return None
        spec = importlib.util.spec_from_file_location(f"custom_module_{abs(hash(os.path.abspath(file)))}", file)
        if spec is None or spec.loader is None:
            found["missing"] = f"{file} (no Python file)"
            return None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        functions = inspect.getmembers(module, inspect.isfunction)
        found["missing_function"] = [n for n, f in functions if f.__module__ == module.__name__]
        return None
    return function


def _verls_own() -> Any:
    from verl.utils.reward_score import default_compute_score

    return default_compute_score


def _call(function: Any, row: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Call the function for one row, with the arguments that verl's naive reward manager gives."""
    try:
        arguments = {
            "data_source": row["data_source"],
            "solution_str": SOLUTION,
            "ground_truth": row["reward_model"]["ground_truth"],
            "extra_info": {**copy.deepcopy(row.get("extra_info") or {}), "num_turns": 2, "rollout_reward_scores": {}},
        }
    except (KeyError, TypeError):
        return {"skipped": "the row has not what a reward is called with"}  # the columns' findings say so
    try:
        value = function(**{**arguments, **extra})
        if inspect.isawaitable(value):
            value = asyncio.run(asyncio.wait_for(_whole(value), CALL_LIMIT_S))
    except Exception as failure:  # noqa: BLE001 - the user's own code
        return {"raised": describe(failure)}
    score: Any = value.get("score") if isinstance(value, dict) else value
    try:
        usable = math.isfinite(float(score))
    except (TypeError, ValueError):
        usable = False
    return {"value": repr(value)[:200], "usable": usable}


async def _whole(awaitable: Any) -> Any:
    return await awaitable
