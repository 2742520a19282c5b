"""Start vLLM with a command's settings and let it generate one token, phase by phase."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from raydebug.check.inside.__main__ import describe
from raydebug.check.inside.config import CannotCompose, compose, read_by

PROMPT = "What is 1 plus 2?"


def gather(request: dict[str, Any]) -> dict[str, Any]:
    """Return how vLLM's start went: seconds by phase, the token, or the phase that failed and its first cause."""
    try:
        config = compose(request)
    except CannotCompose as refusal:
        return refusal.as_facts()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    facts: dict[str, Any] = {"config": config, "phases": {}}
    try:
        _start(config, facts)
    except BaseException as failure:  # noqa: BLE001 - argument errors of vLLM end the program
        facts["failed"] = describe(failure)
    facts["read"] = read_by(request, config["actor_rollout_ref"]["model"]["path"])
    return facts


def _start(config: dict[str, Any], facts: dict[str, Any]) -> None:
    with _phase(facts, "import"):
        import vllm
        from vllm.engine.arg_utils import EngineArgs
    options = engine_options(config)
    with _phase(facts, "settings"):
        arguments = EngineArgs(**options)
        arguments.create_engine_config()
    with _phase(facts, "engine"):
        engine = vllm.LLM(**options)
    with _phase(facts, "token"):
        sampling = vllm.SamplingParams(max_tokens=1, temperature=0.0)
        answer = engine.generate([PROMPT], sampling, use_tqdm=False)[0]
        facts["token"] = answer.outputs[0].text
        facts["tokens"] = len(answer.outputs[0].token_ids)


def engine_options(config: dict[str, Any]) -> dict[str, Any]:
    """Return what verl gives vLLM for a config.

    Source: verl 0.9.1 workers/rollout/vllm_rollout/vllm_async_server.py:320 (launch_server) and :1103 (max_model_len).
    """
    rollout, model = config["actor_rollout_ref"]["rollout"], config["actor_rollout_ref"]["model"]
    extra = {k: v for k, v in ((rollout.get("engine_kwargs") or {}).get("vllm") or {}).items() if v is not None}
    same = ("dtype", "load_format", "max_model_len", "max_num_seqs", "enable_chunked_prefill", "max_num_batched_tokens",
            "enable_prefix_caching", "logprobs_mode", "enforce_eager", "gpu_memory_utilization", "disable_log_stats",
            "seed", "quantization", "scheduling_policy")  # fmt: skip
    options = {name: rollout[name] for name in same if rollout.get(name) is not None}
    return {
        "model": os.path.expanduser(str(model["path"])),  # noqa: PTH111 - as verl does
        "trust_remote_code": bool(model.get("trust_remote_code")),
        "enable_sleep_mode": bool(rollout.get("enable_sleep_mode", True)),
        "tensor_parallel_size": rollout["tensor_model_parallel_size"],
        "worker_extension_cls": "verl.workers.rollout.vllm_rollout.utils.vLLMColocateWorkerExtension",
        **options,
        **extra,
    }


@contextmanager
def _phase(facts: dict[str, Any], name: str) -> Iterator[None]:
    facts["phase"] = name
    started = time.monotonic()
    try:
        yield
    finally:
        facts["phases"][name] = round(time.monotonic() - started, 2)
