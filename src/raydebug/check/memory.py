"""How much memory a training takes on each GPU, by the command's own sizes: an estimate of the large parts. Pure.

Source: verl 0.9.1 workers/engine/fsdp/transformer_impl.py (parameters, gradients and AdamW's two moments in
fsdp_config.model_dtype, fp32 unless said, split over the ranks); vLLM keeps weights and KV cache inside
gpu_memory_utilization of each GPU, split over tensor_model_parallel_size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GIB = 1024**3
BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "half": 2, "auto": 2}
# Layers with a state of fixed size per sequence instead of a cache that grows with it.
STATEFUL = ("mamba", "linear_attention", "recurrent", "conv", "short_conv")


@dataclass(frozen=True)
class Estimate:
    """Bytes on each GPU.

    Args:
        training: parameters, gradients, optimizer of actor and critic that stay on the GPU.
        rollout_weights: vLLM's own copy of the weights.
        cache_per_token: of the KV cache, for one token of one sequence; 0 where the model has none that grows.
        sequence: tokens of the longest sequence that vLLM is told to serve.
    """

    training: int
    rollout_weights: int
    cache_per_token: int
    sequence: int

    @property
    def one_sequence(self) -> int:
        """Bytes of the KV cache for one sequence of full length: vLLM refuses to start with less."""
        return self.cache_per_token * self.sequence


def estimate(config: Mapping[str, Any], sizes: Mapping[str, int], parameters: int, *, stateful: bool) -> Estimate:
    """Return what a training takes on each GPU.

    Args:
        config: of the command.
        sizes: of the model, as its config names them.
        parameters: how many numbers the model has.
        stateful: some of its layers keep a state instead of a cache.
    """
    actor, rollout = config["actor_rollout_ref"]["actor"], config["actor_rollout_ref"]["rollout"]
    ranks = max(1, config["trainer"]["n_gpus_per_node"] * config["trainer"]["nnodes"])
    split = rollout["tensor_model_parallel_size"]
    trained = _trained(parameters, actor.get("fsdp_config") or {}, ranks)
    critic = config.get("critic") or {}
    needs_critic = critic.get("enable")
    if needs_critic if needs_critic is not None else config["algorithm"]["adv_estimator"] == "gae":
        trained += _trained(parameters, critic.get("fsdp") or {}, ranks)
    return Estimate(
        training=trained,
        rollout_weights=parameters * BYTES.get(rollout.get("dtype", "bfloat16"), 2) // split,
        cache_per_token=_cache_per_token(sizes, split, stateful=stateful),
        sequence=rollout.get("max_model_len") or sizes.get("max_position_embeddings", 0),
    )


def _trained(parameters: int, fsdp: Mapping[str, Any], ranks: int) -> int:
    number = BYTES.get(str(fsdp.get("model_dtype") or "fp32"), 4)
    copies = (0 if fsdp.get("param_offload") else 1) + 1 + (0 if fsdp.get("optimizer_offload") else 2)
    return parameters * number * copies // ranks


def _cache_per_token(sizes: Mapping[str, int], split: int, *, stateful: bool) -> int:
    layers, heads = sizes.get("num_hidden_layers", 0), sizes.get("num_attention_heads", 0)
    if stateful or not layers or not heads:
        return 0
    if "kv_lora_rank" in sizes:  # multi-head latent attention: one compressed vector for all heads, on each rank
        return layers * (sizes["kv_lora_rank"] + sizes.get("qk_rope_head_dim", 0)) * 2
    width = sizes.get("head_dim") or sizes.get("hidden_size", 0) // heads
    kept = max(1, sizes.get("num_key_value_heads", heads) // split)
    return 2 * layers * kept * width * 2


def in_gib(count: float) -> str:
    """Return bytes as a reader takes them in: 1.5 GiB, 12 MiB."""
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else f"{count / 1024**2:.1f} MiB"
