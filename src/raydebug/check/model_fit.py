"""Rules about a model and a command: contexts, heads, attention, and an estimate of the memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from raydebug.check.config import is_on_cpu
from raydebug.check.target import Target
from raydebug.findings import Finding, finding
from raydebug.settings.files import environment_dir
from raydebug.settings.flavours import numbers
from raydebug.trainers.config import BYTES, TrainingConfig

GIB = 1024**3
# Layers with a state of fixed size per sequence instead of a cache that grows with it, or with a cache that ends at a
# window or chunk. Source of the latter: vllm 0.28 v1/kv_cache_interface.py SlidingWindowSpec and
# ChunkedLocalAttentionSpec, max_memory_usage_bytes.
STATEFUL = ("mamba", "linear_attention", "recurrent", "conv", "short_conv", "sliding", "chunked")
Sizes: TypeAlias = Mapping[str, int]
# Source: verl 0.6.0 and 0.6.1 workers/fsdp_workers.py: only the newer one reads attn_implementation.
FLASH_IS_A_CHOICE_SINCE = (0, 6, 1)
# Source: verl 0.1 to 0.5 workers/rollout/vllm_rollout/vllm_rollout*.py; the server of 0.7 shortens answers.
FITS_CONTEXT_SINCE = (0, 7)
ENGINE_EXTRA_BYTES = GIB  # what vLLM takes for activations and CUDA graphs, about


@dataclass(frozen=True)
class Estimate:
    """Bytes on each GPU.

    Args:
        training: parameters, gradients and optimizer of actor and critic that stay on the GPU.
        rollout_weights: vLLM's own copy of the weights.
        cache_per_token: of the KV cache, for one token of one sequence; 0 if the model has no cache that grows.
        sequence: tokens of the longest sequence that vLLM has to serve.
    """

    training: int
    rollout_weights: int
    cache_per_token: int
    sequence: int

    @property
    def one_sequence(self) -> int:
        """Bytes of the KV cache for one sequence of full length: vLLM refuses to start with less."""
        return self.cache_per_token * self.sequence


def estimate(config: TrainingConfig, trained_bytes: int, sizes: Sizes, parameters: int, *, stateful: bool) -> Estimate:
    """Return the large parts of what a training takes on each GPU, beside what the trainer shards (trained_bytes).

    Source: vLLM keeps weights and KV cache inside gpu_memory_utilization of each GPU, split by tensor parallelism;
    stateful layers keep a state instead of a cache, or of a window alone.
    """
    split = config.get("tensor_parallel")
    return Estimate(
        training=trained_bytes,
        rollout_weights=parameters * BYTES.get(config.get("rollout_dtype", "bfloat16"), 2) // split,
        cache_per_token=_cache_per_token(sizes, split, stateful=stateful),
        sequence=config.get("rollout_model_tokens") or sizes.get("max_position_embeddings", 0),
    )


def judge(target: Target, facts: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[Finding]:
    """Return what does not fit, by the facts of `probes/model.py`."""
    config, sizes = target.config(facts["config"]), facts["sizes"]
    on_cpu = is_on_cpu(variables)
    # Megatron and others shard and offload by settings of their own, and bring their own attention.
    is_fsdp = str(config.get("actor_strategy") or "fsdp").startswith("fsdp")
    model_config = facts.get("json", {})
    kind = (model_config.get("rope_parameters") or {}).get("rope_type", "default")  # as transformers 5 writes it
    is_scaled = model_config.get("rope_scaling") or kind != "default"
    yield from _context(config, sizes, "" if is_scaled else facts["trainer_version"])
    yield from _heads(config, sizes)
    if is_fsdp and not on_cpu and "transformers" not in facts.get("lacking", {}):
        yield from _attention(config, facts["trainer_version"], has_flash=facts["has_flash_attention"])
    parameters = facts["shards"].get("parameters") or 0
    if config.ranks is None or not config.whole("tensor_parallel"):
        return
    if any("wrong" in shard for shard in facts["shards"]["shards"]) or not parameters:
        return
    stateful = any(word in kind for kind in facts["layer_types"] for word in STATEFUL)
    rules = target.rules
    assert rules is not None, "without rules the memory is not asked for"
    trained = rules.trained_bytes(config, parameters) if is_fsdp else 0
    needed = estimate(config, trained, sizes, parameters, stateful=stateful)
    if on_cpu:
        yield from _on_cpu(config, needed, variables, facts["memory_bytes"], sizes)
    else:
        yield from _on_gpu(config, needed, facts.get("gpu_bytes"), sizes)


def _context(config: TrainingConfig, sizes: Sizes, version: str) -> Iterator[Finding]:
    limit, asked = sizes.get("max_position_embeddings"), config.whole("rollout_model_tokens")
    prompt, answer = config.whole("prompt_tokens"), config.whole("response_tokens")
    if prompt is None or answer is None:
        return
    room, overrides = asked or limit, dict[str, str | None]()
    key, prompt_key, answer_key = (config.keys[w] for w in ("rollout_model_tokens", "prompt_tokens", "response_tokens"))
    if limit is not None and version and numbers(version) < FITS_CONTEXT_SINCE and limit < prompt + answer:
        rest, key = (limit - prompt, answer_key) if limit > prompt else (max(1, limit - answer), prompt_key)
        case, overrides = "positions", {key: str(rest)}
    elif limit is not None and asked is not None and asked > limit:
        case, overrides = "too-long", {key: str(min(limit, prompt + answer))}
    elif room is not None and room <= prompt:
        case = "no-room" if asked is None else "little-room"
        overrides = {prompt_key: str(max(1, room - answer))}
    elif room is not None and room < prompt + answer:
        case, overrides = "cut", {answer_key: str(room - prompt)}
    else:
        return
    about: dict[str, Any] = {"prompt": prompt, "answer": answer, "limit": limit, "room": room, "version": version}
    yield finding(f"model.context.{case}", key=key, asked=asked, overrides=overrides, **about)


def _heads(config: TrainingConfig, sizes: Sizes) -> Iterator[Finding]:
    split, key = config.whole("tensor_parallel"), config.keys["tensor_parallel"]
    heads = sizes.get("num_attention_heads")
    if heads and split and heads % split:
        fitting = next(n for n in range(min(split, heads), 0, -1) if heads % n == 0)
        setting = key.rpartition(".")[2]
        yield finding("model.heads", setting=setting, split=split, heads=heads, overrides={key: str(fitting)})


def _attention(config: TrainingConfig, version: str, *, has_flash: bool) -> Iterator[Finding]:
    if not has_flash and version and numbers(version) < FLASH_IS_A_CHOICE_SINCE:
        yield finding("model.attention.required", version=version)
        return
    asked = config.get("attention") or "flash_attention_2"
    if asked == "flash_attention_2" and not has_flash:
        attention, padding = config.keys["attention"], config.keys["remove_padding"]
        changes: dict[str, str | None] = {f"+{attention}": "sdpa", padding: "False"}
        yield finding("model.attention.default", lock=environment_dir() / "cuda.lock", overrides=changes)


def _on_cpu(
    config: TrainingConfig, needed: Estimate, variables: Mapping[str, str], memory_bytes: int, sizes: Sizes
) -> Iterator[Finding]:
    asked = variables.get("VLLM_CPU_KVCACHE_SPACE", "")
    given = int(asked) * GIB if asked.isdecimal() else 0
    if given > memory_bytes:
        yield finding(
            "model.memory.cpu-cache", asked=asked, memory=memory_bytes, variables={"VLLM_CPU_KVCACHE_SPACE": "1"}
        )
    elif given:
        yield from _cache(config, needed, given, "VLLM_CPU_KVCACHE_SPACE", sizes)
    total = needed.training + needed.rollout_weights + given
    if total > memory_bytes:
        yield finding("model.memory.cpu", total=total, memory=memory_bytes, needed=needed, cache=given)


def _on_gpu(config: TrainingConfig, needed: Estimate, gpu_bytes: int | None, sizes: Sizes) -> Iterator[Finding]:
    if not gpu_bytes:
        return
    share, key = float(config.get("gpu_memory") or 0.5), config.keys["gpu_memory"]
    offload: dict[str, str | None] = {config.keys[w]: "True" for w in ("offload_parameters", "offload_optimizer")}
    if needed.training > gpu_bytes:
        yield finding("model.memory.rank", needed=needed, memory=gpu_bytes, overrides=offload)
        return
    room = int(share * gpu_bytes) - needed.rollout_weights - ENGINE_EXTRA_BYTES
    if room <= 0:
        part = share * gpu_bytes
        yield finding("model.memory.engine", share=share, part=part, needed=needed, key=key, config=config)
        return
    yield from _cache(config, needed, room, key, sizes)
    if share * gpu_bytes + needed.training > gpu_bytes:
        part = share * gpu_bytes
        yield finding("model.memory.both", part=part, needed=needed, memory=gpu_bytes, overrides=offload)


def _cache(config: TrainingConfig, needed: Estimate, room: int, owner: str, sizes: Sizes) -> Iterator[Finding]:
    """Judge whether the KV cache holds one sequence of full length: vLLM does not start otherwise."""
    if not needed.cache_per_token or needed.one_sequence <= room:
        return
    key, tokens = config.keys["rollout_model_tokens"], room // needed.cache_per_token
    overrides = {key: str(tokens)} if tokens else {}
    about: dict[str, Any] = {"needed": needed, "room": room, "owner": owner}
    positions = sizes.get("max_position_embeddings")
    yield finding("model.kv-cache", key=key, tokens=tokens, positions=positions, overrides=overrides, **about)


def _cache_per_token(sizes: Mapping[str, int], split: int, *, stateful: bool) -> int:
    layers, heads = sizes.get("num_hidden_layers", 0), sizes.get("num_attention_heads", 0)
    if stateful or not layers or not heads:
        return 0
    if "kv_lora_rank" in sizes:  # multi-head latent attention: one compressed vector for all heads, on each rank
        return layers * (sizes["kv_lora_rank"] + sizes.get("qk_rope_head_dim", 0)) * 2
    width = sizes.get("head_dim") or sizes.get("hidden_size", 0) // heads
    kept = max(1, sizes.get("num_key_value_heads", heads) // split)
    return 2 * layers * kept * width * 2
