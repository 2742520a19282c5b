"""Stage `engine`: vLLM starts with the command's settings, in the size of the profile `debug`, and answers a token."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from raydebug.check.target import Target
from raydebug.diagnose.cause import diagnose
from raydebug.diagnose.inputs import read_text
from raydebug.findings import Finding, finding
from raydebug.settings.flavours import install
from raydebug.trainers.config import TrainingConfig

BUDGET_S = 60.0
PROFILE = "debug"  # where the user names none
FINDINGS = {
    "import": "engine.import.failed",
    "settings": "engine.settings",
    "engine": "engine.start",
    "token": "engine.token",
}
# What vLLM says -> the fix, with our setting names for the trainer's keys. Source: vllm 0.24 and 0.28,
# v1/core/kv_cache_utils.py, v1/worker/utils.py.
KNOWN = (
    (r"larger than the available KV cache|No available memory for the cache blocks",
     "a smaller {rollout_model_tokens}, or a larger gpu_memory_utilization (on a CPU VLLM_CPU_KVCACHE_SPACE)"),
    (r"Free memory on device|CUDA out of memory",
     "free the GPU (`nvidia-smi` names its processes), or a smaller {gpu_memory}"),
    (r"Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver",
     "vLLM finds no GPU: run it on a GPU host, or see what `raydebug check env` says of the driver"),
    (r"Sleep mode is not supported", "+{sleep_mode}=False {free_cache}=False"),
    (r"undefined symbol|cannot open shared object", "install vLLM and torch of one lock again: they do not fit"),
)  # fmt: skip


def judge(target: Target, facts: Mapping[str, Any]) -> list[Finding]:
    """Return the findings about a start of vLLM. Pure."""
    if "vllm" in facts.get("lacking", {}):
        return [finding("engine.import.not-installed", install=install("vllm"))]
    if "failed" not in facts:
        return []
    failed, place = facts["failed"], facts["failed"]["where"]
    lines = [line.strip() for line in failed["message"].strip().splitlines() if "errors.pydantic.dev" not in line]
    message = re.sub(r" \[type=.*?\]$", "", ": ".join(lines))  # without pydantic's frame around it
    failure = f"{failed['type']}: {message}"
    # An engine in a process of its own reports only that it failed: its own traceback is in the output.
    if "root cause" in failed["message"] or "initialization failed" in failed["message"]:
        first = diagnose(read_text(facts.get("output", ""), "vLLM")).first
        if first is not None and first.error is not None:
            failure, place = first.error.title, first.error.place or place
    phase, phases = facts["phase"], [f"{name} {seconds:.1f} s" for name, seconds in facts["phases"].items()]
    fix, overrides = _fix(failure, target.config(facts["config"]))
    return [
        finding(FINDINGS[phase], phase=phase, phases=phases, failure=failure, place=place, fix=fix, overrides=overrides)
    ]


def _fix(failure: str, config: TrainingConfig) -> tuple[str, dict[str, str | None]]:
    """Return the fix: of the command's own setting that vLLM's words name, else of what is known, else a hint."""
    prefix = config.keys["vllm_options"]
    own = {
        key: value for key, value in (config.get("vllm_options") or {}).items() if key != "distributed_executor_backend"
    }
    for key, value in own.items():
        words = {key, key.removeprefix("kv_"), str(value)} - {"True", "False", "None", "1"}
        if any(re.search(rf"(?<![\w]){re.escape(word)}(?![\w])", failure) for word in words):
            return f"take {prefix}.{key} out, or give it a value that vLLM takes", {f"{prefix}.{key}": None}
    for pattern, fix in KNOWN:
        if re.search(pattern, failure):
            return fix.format(**config.keys), {}
    if own:
        named = ", ".join(f"{prefix}.{key}" for key in own)
        return f"take out what the command adds for vLLM, one by one: {named}", {}
    return "run `raydebug check engine --json` for all that was printed, and look at the line that raised it", {}
