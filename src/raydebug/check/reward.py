"""Rules about the reward function, from a trial on the first rows. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raydebug.findings import Finding, error

# Managers that call the function as the naive one does. Source: verl 0.9.1 experimental/reward_loop/reward_manager/.
SAME_CALL = ("naive", "dapo", "gdpo", "remote")


def judge(tried: Mapping[str, Any], keys: Mapping[str, str]) -> Iterator[Finding]:
    """Return the findings about a reward function.

    Args:
        tried: facts of `probes/reward.py`.
        keys: our words in the trainer's keys.
    """
    file_key, name_key = keys["reward_file"], keys["reward_name"]
    where = f"{tried['path']}:{tried['name']}" if tried["path"] else "verl's own reward"
    if "missing" in tried:
        yield error(
            "data.reward-missing",
            f"there is no file {tried['missing']}",
            why=f"{file_key} names it; a relative path is one of the folder that the command runs in",
            fix=f"{file_key}=FILE, as the cluster sees it (containers see your project as /workspace)",
        )
    elif "missing_function" in tried:
        others = tried["missing_function"]
        yield error(
            "data.reward-missing",
            f"{tried['path']} has no function {tried['name']}",
            why=f"it has {', '.join(others) or 'none'}",
            fix=f"{name_key}={others[0] if len(others) == 1 else 'NAME'}",
            overrides={f"{name_key}": others[0]} if len(others) == 1 else {},
        )
    elif "import" in tried:
        yield _import(tried["import"], where)
    elif tried["manager"] in SAME_CALL:
        for call in tried["calls"]:
            if "raised" in call or not call.get("usable", True):
                yield _call(call, where, file_key)
                return  # the other rows mostly say the same


def _import(failure: Mapping[str, str], where: str) -> Finding:
    missing = failure["message"].partition("'")[2].partition("'")[0] if failure["type"] == "ModuleNotFoundError" else ""
    return error(
        "data.reward-import",
        f"{where} cannot be imported: {failure['type']}: {failure['message']}",
        why=f"{failure['where']} raised it; each reward worker imports the file",
        fix=f"pip install {missing} in the cluster's environment" if missing else f"fix {failure['where']}",
    )


def _call(call: Mapping[str, Any], where: str, file_key: str) -> Finding:
    if "raised" not in call:
        return error(
            "data.reward-value",
            f"{where} returns {call['value']} for row {call['row']}",
            why="verl takes a number, or a dict with a number at 'score'; nan and inf spoil the whole batch",
            fix="return a float, or {'score': float}",
        )
    raised = call["raised"]
    if raised["type"] == "NotImplementedError" and "data_source" in raised["message"]:
        return error(
            "data.reward-source",
            f"verl has no reward for data_source '{call['source']}'",
            why=f"{raised['message']} (verl/utils/reward_score)",
            fix=f"{file_key}=FILE with a function compute_score; `raydebug tiny dataset DIR` writes one",
        )
    unexpected = "unexpected keyword argument" in raised["message"] or "positional argument" in raised["message"]
    return error(
        "data.reward-raises",
        f"{where} fails on row {call['row']}: {raised['type']}: {raised['message']}",
        why=f"{raised['where']} raised it for the answer 'The answer is 1.'",
        fix="verl calls it with data_source, solution_str, ground_truth and extra_info by name; take **kwargs as well"
        if unexpected
        else f"fix {raised['where']}: answers of a model can be anything, the empty one too",
    )
