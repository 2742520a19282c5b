"""Does the model fit the command: contexts, heads, attention, and the memory that there is? Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raydebug.check.finding import Finding, error, warning
from raydebug.check.memory import GIB, STATEFUL, Estimate, estimate, in_gib

ROLLOUT = "actor_rollout_ref.rollout"
FSDP = "actor_rollout_ref.actor.fsdp_config"
ENGINE_EXTRA_BYTES = GIB  # what vLLM takes for activations and CUDA graphs, about


def judge(facts: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[Finding]:
    """Return what does not fit.

    Args:
        facts: of `inside/model.py`, with the model's sizes.
        variables: of the training.
    """
    config, sizes = facts["config"], facts["sizes"]
    on_cpu = variables.get("VERL_PLATFORM", "").strip().lower() == "cpu"
    yield from _context(config, sizes)
    yield from _heads(config, sizes)
    if not on_cpu:
        yield from _attention(config, has_flash=facts["has_flash_attention"])
    parameters = facts["shards"].get("parameters") or 0
    if any("wrong" in shard for shard in facts["shards"]["shards"]) or not parameters:
        return
    stateful = any(word in kind for kind in facts["layer_types"] for word in STATEFUL)
    needed = estimate(config, sizes, parameters, stateful=stateful)
    if on_cpu:
        yield from _on_cpu(needed, variables, facts["memory_bytes"], sizes)
    else:
        yield from _on_gpu(config, needed, facts.get("gpu_bytes"), sizes)


def _context(config: Mapping[str, Any], sizes: Mapping[str, int]) -> Iterator[Finding]:
    data, limit = config["data"], sizes.get("max_position_embeddings")
    asked = config["actor_rollout_ref"]["rollout"].get("max_model_len")
    prompt, answer = data["max_prompt_length"], data["max_response_length"]
    key = f"{ROLLOUT}.max_model_len"
    if limit is not None and asked is not None and asked > limit:
        yield error(
            "model.context",
            f"{key}={asked}, and the model has {limit} positions",
            why="verl 0.9.1 refuses it (vllm_async_server.py:1107), after the workers are up",
            fix=f"{key}={min(limit, prompt + answer)}",
            overrides={key: str(min(limit, prompt + answer))},
        )
        return
    room = asked or limit
    if room is None:
        return
    if room <= prompt:
        yield error(
            "model.context",
            f"prompts of up to {prompt} tokens leave no room in a context of {room}",
            why="verl 0.9.1 raises 'leaves no room to generate' at the first prompt of that length",
            fix=f"data.max_prompt_length={max(1, room - answer)}" + ("" if asked is None else f", or a larger {key}"),
            overrides={"data.max_prompt_length": str(max(1, room - answer))},
        )
    elif room < prompt + answer:
        yield warning(
            "model.context",
            f"a prompt of {prompt} and an answer of {answer} tokens do not fit a context of {room} together",
            why="answers to the longest prompts are cut short",
            fix=f"data.max_response_length={room - prompt}",
            overrides={"data.max_response_length": str(room - prompt)},
        )


def _heads(config: Mapping[str, Any], sizes: Mapping[str, int]) -> Iterator[Finding]:
    split = config["actor_rollout_ref"]["rollout"]["tensor_model_parallel_size"]
    heads = sizes.get("num_attention_heads")
    if heads and heads % split:
        fitting = next(n for n in range(min(split, heads), 0, -1) if heads % n == 0)
        yield error(
            "model.heads",
            f"tensor_model_parallel_size={split} does not divide the model's {heads} attention heads",
            why="vLLM: 'Total number of attention heads must be divisible by tensor parallel size'",
            fix=f"{ROLLOUT}.tensor_model_parallel_size={fitting}",
            overrides={f"{ROLLOUT}.tensor_model_parallel_size": str(fitting)},
        )


def _attention(config: Mapping[str, Any], *, has_flash: bool) -> Iterator[Finding]:
    model = config["actor_rollout_ref"]["model"]
    asked = (model.get("override_config") or {}).get("attn_implementation") or "flash_attention_2"
    if asked == "flash_attention_2" and not has_flash:
        changes = {"+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
                   "actor_rollout_ref.model.use_remove_padding": "False"}  # fmt: skip
        yield error(
            "model.attention",
            "actor and reference model want flash_attention_2, and flash-attn is not installed",
            why="it is verl's default: ImportError when the actor is loaded",
            fix="install flash-attn as env/cuda.lock has it, or "
            + " ".join(f"{key}={value}" for key, value in changes.items()),
            overrides=changes,
        )


def _on_cpu(
    needed: Estimate, variables: Mapping[str, str], memory_bytes: int, sizes: Mapping[str, int]
) -> Iterator[Finding]:
    asked = variables.get("VLLM_CPU_KVCACHE_SPACE", "")
    given = int(asked) * GIB if asked.isdecimal() else 0
    if given > memory_bytes:
        yield error(
            "model.memory",
            f"VLLM_CPU_KVCACHE_SPACE={asked} GiB, and this machine has {in_gib(memory_bytes)} of memory",
            why="vLLM raises ValueError: available memory is less than requested memory for kv",
            fix="VLLM_CPU_KVCACHE_SPACE=1",
            variables={"VLLM_CPU_KVCACHE_SPACE": "1"},
        )
    elif given:
        yield from _cache(needed, given, "VLLM_CPU_KVCACHE_SPACE", sizes)
    total = needed.training + needed.rollout_weights + given
    if total > memory_bytes:
        yield error(
            "model.memory",
            f"the training needs about {in_gib(total)} of memory, {in_gib(memory_bytes)} are there",
            why=f"{in_gib(needed.training)} for parameters, gradients and optimizer, {in_gib(needed.rollout_weights)} "
            f"for vLLM's weights, {in_gib(given)} for its cache: the OOM killer ends it",
            fix="a smaller model (`raydebug tiny model DIR --like MODEL`), or a larger machine",
        )


def _on_gpu(
    config: Mapping[str, Any], needed: Estimate, gpu_bytes: int | None, sizes: Mapping[str, int]
) -> Iterator[Finding]:
    if not gpu_bytes:
        return
    share = float(config["actor_rollout_ref"]["rollout"].get("gpu_memory_utilization") or 0.5)
    if needed.training > gpu_bytes:
        offload = {f"{FSDP}.param_offload": "True", f"{FSDP}.optimizer_offload": "True"}
        yield error(
            "model.memory",
            f"each rank needs about {in_gib(needed.training)} for parameters, gradients and optimizer",
            why=f"a GPU has {in_gib(gpu_bytes)}; activations come on top: CUDA out of memory while the actor is built",
            fix="more GPUs, or " + " ".join(f"{key}={value}" for key, value in offload.items()),
            overrides=offload,
        )
        return
    room = int(share * gpu_bytes) - needed.rollout_weights - ENGINE_EXTRA_BYTES
    if room <= 0:
        yield error(
            "model.memory",
            f"gpu_memory_utilization={share:g} gives vLLM {in_gib(share * gpu_bytes)}, its weights alone take "
            f"{in_gib(needed.rollout_weights)}",
            why="'No available memory for the cache blocks'",
            fix=f"a larger {ROLLOUT}.gpu_memory_utilization or {ROLLOUT}.tensor_model_parallel_size",
        )
        return
    yield from _cache(needed, room, f"{ROLLOUT}.gpu_memory_utilization", sizes)
    if share * gpu_bytes + needed.training > gpu_bytes:
        yield warning(
            "model.memory",
            f"vLLM's {in_gib(share * gpu_bytes)} and the training's {in_gib(needed.training)} are more than a GPU has",
            why=f"{in_gib(gpu_bytes)}; both are there while answers are generated",
            fix=f"{FSDP}.param_offload=True {FSDP}.optimizer_offload=True, or a smaller gpu_memory_utilization",
            overrides={f"{FSDP}.param_offload": "True", f"{FSDP}.optimizer_offload": "True"},
        )


def _cache(needed: Estimate, room: int, owner: str, sizes: Mapping[str, int]) -> Iterator[Finding]:
    """Judge whether the KV cache holds one sequence of full length: vLLM does not start otherwise."""
    if not needed.cache_per_token or needed.one_sequence <= room:
        return
    tokens = room // needed.cache_per_token
    yield error(
        "model.kv-cache",
        f"one sequence of {needed.sequence} tokens takes {in_gib(needed.one_sequence)} of KV cache, "
        f"{in_gib(room)} are there",
        why=f"{owner} decides it; vLLM: 'larger than the available KV cache memory'",
        fix=f"{ROLLOUT}.max_model_len={tokens}; without it, it is the model's {sizes.get('max_position_embeddings')}",
        overrides={f"{ROLLOUT}.max_model_len": str(tokens)} if tokens else {},
    )
