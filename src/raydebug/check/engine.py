"""Stage `engine`: vLLM starts with the command's settings, in the size of the profile `debug`, and answers a token."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from raydebug.check import command
from raydebug.check.ask import ask
from raydebug.check.finding import Finding, error
from raydebug.check.stage import Checked
from raydebug.check.subject import Subject
from raydebug.joblog.errors import find_errors, judge_errors

BUDGET_S = 60.0
EXTRA = "actor_rollout_ref.rollout.engine_kwargs.vllm"
ROLLOUT = "actor_rollout_ref.rollout"
CODES_BY_PHASE = {
    "import": "engine.import",
    "settings": "engine.settings",
    "engine": "engine.start",
    "token": "engine.token",
}
# What vLLM says -> what to do. Source: vllm 0.24 and 0.28, v1/core/kv_cache_utils.py, v1/worker/utils.py.
KNOWN = (
    (r"larger than the available KV cache|No available memory for the cache blocks",
     f"a smaller {ROLLOUT}.max_model_len, or a larger gpu_memory_utilization (on a CPU VLLM_CPU_KVCACHE_SPACE)"),
    (r"Free memory on device|CUDA out of memory",
     f"free the GPU (`nvidia-smi` names who holds it), or a smaller {ROLLOUT}.gpu_memory_utilization"),
    (r"Sleep mode is not supported", f"+{ROLLOUT}.enable_sleep_mode=False {ROLLOUT}.free_cache_engine=False"),
    (r"undefined symbol|cannot open shared object", "install vLLM and torch of one lock again: they do not fit"),
)  # fmt: skip


def check(subject: Subject) -> Checked:
    """Let the cluster's Python start vLLM, and judge how it went."""
    facts = ask(subject, "engine", budget_s=BUDGET_S, **{**subject.as_request(), "profile": subject.profile or "debug"})
    return Checked(judge(subject, facts), tuple(facts.get("read", ())))


def judge(subject: Subject, facts: Mapping[str, Any]) -> list[Finding]:
    """Return the findings about a start of vLLM. Pure."""
    if "config_error" in facts:
        return [command.refused(facts["config_error"], subject.overrides)]
    if "failed" not in facts:
        return []
    phase = facts["phase"]
    failed, where = facts["failed"], facts["failed"]["where"]
    said = f"{failed['type']}: {_sentence(failed['message'])}"
    # An engine in a process of its own tells us only that it failed: its own traceback stands in what was printed.
    if "root cause" in failed["message"] or "initialization failed" in failed["message"]:
        first = judge_errors(find_errors("vLLM", facts.get("output", "").splitlines())).first
        said, where = (first.title, first.place) if first else (said, where)
    took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in facts["phases"].items())
    mend, overrides = _mend(said, facts["config"])
    return [
        error(
            CODES_BY_PHASE[phase],
            f"vLLM fails at '{phase}': {said[:300]}",
            why=f"{where} raised it ({took})",
            fix=mend,
            overrides=overrides,
        )
    ]


def _sentence(message: str) -> str:
    """Return what a message says, without pydantic's frame around it."""
    lines = [line.strip() for line in message.strip().splitlines() if "errors.pydantic.dev" not in line]
    return re.sub(r" \[type=.*?\]$", "", ": ".join(lines))


def _mend(said: str, config: Mapping[str, Any]) -> tuple[str, dict[str, str | None]]:
    """Return the fix: of the command's own setting that vLLM's words name, else of what is known, else a hint."""
    extra = ((config["actor_rollout_ref"]["rollout"].get("engine_kwargs") or {}).get("vllm")) or {}
    own = {key: value for key, value in extra.items() if key != "distributed_executor_backend"}
    for key, value in own.items():
        words = {key, key.removeprefix("kv_"), str(value)} - {"True", "False", "None", "1"}
        if any(re.search(rf"(?<![\w]){re.escape(word)}(?![\w])", said) for word in words):
            return f"take {EXTRA}.{key} out, or give it a value that vLLM takes", {f"{EXTRA}.{key}": None}
    for pattern, fix in KNOWN:
        if re.search(pattern, said):
            return fix, {}
    if own:
        named = ", ".join(f"{EXTRA}.{key}" for key in own)
        return f"take out what the command adds for vLLM, one by one: {named}", {}
    return "run `raydebug check engine --json` for all that was printed, and look at the line that raised it", {}
