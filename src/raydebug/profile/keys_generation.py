"""The keys of verl's programs that only generate, release by release.

Source: verl trainer/config/generation.yaml (main_generation, to 0.7.0); main_generation_server (from 0.6.0) reads the
config of main_ppo. load_format is left out on purpose: no trainer sends these programs weights.
"""

from __future__ import annotations

from raydebug.profile.keys import GONE, Column, Key, later
from raydebug.profile.keys_ppo import PPO

_0_4_0: Column = {
    "prompt_tokens": Key("rollout.prompt_length", 1536),
    "response_tokens": Key("rollout.response_length", 512),
    "gpus_per_node": Key("trainer.n_gpus_per_node", 8),
    "nodes": Key("trainer.nnodes", 1),
    "tensor_parallel": Key("rollout.tensor_model_parallel_size", 1),
    "train_batch_size": Key("data.batch_size", 128),
    "rollouts_per_prompt": Key("data.n_samples", 5),
    "gpu_memory": Key("rollout.gpu_memory_utilization", 0.5),
    "eager_rollout": Key("rollout.enforce_eager", True),
    "free_cache": Key("rollout.free_cache_engine", True),
    "rollout_model_tokens": Key("rollout.max_model_len"),
    "rollout_sequences": Key("rollout.max_num_seqs", 1024),
    "rollout_batched_tokens": Key("rollout.max_num_batched_tokens", 8192),
    "ray_cpus": Key("ray_init.num_cpus"),
    "ray_gpus": Key("ray_init.num_gpus", added=True),
    "model": Key("model.path", "~/models/Qwen2-7B-Instruct"),
    "train_data": Key("data.path", "~/data/rlhf/math/test.parquet"),
    "prompt_column": Key("data.prompt_key", "prompt"),
}
_0_4_1 = later(_0_4_0, device=Key("trainer.device", "cuda"))
_0_6_0 = later(
    _0_4_1,
    ray_cpus=Key("ray_kwargs.ray_init.num_cpus"),
    ray_gpus=Key("ray_kwargs.ray_init.num_gpus", added=True),
)

# Gone with 0.7.1, which has main_generation_server alone.
GENERATION: dict[str, Column] = {
    "0.4.0": _0_4_0,
    "0.4.1": _0_4_1,
    "0.5.0": _0_4_1,
    "0.6.0": _0_6_0,
    "0.6.1": _0_6_0,
    "0.7.0": _0_6_0,
    "0.7.1": GONE,
}

# Source: verl 0.9.1 trainer/main_generation_server.py.
_SERVED = (
    *("prompt_tokens", "response_tokens", "gpus_per_node", "nodes", "tensor_parallel", "rollouts_per_prompt"),
    *("gpu_memory", "eager_rollout", "rollout_model_tokens", "rollout_sequences", "rollout_batched_tokens"),
    *("model", "tokenizer", "model_config", "train_data", "prompt_column", "sleep_mode", "rollout_executor"),
)
GENERATION_SERVER: dict[str, Column] = {
    version: {word: column[word] for word in _SERVED if word in column}
    for version, column in PPO.items()
    if version not in ("0.4.0", "0.4.1", "0.5.0")
}
