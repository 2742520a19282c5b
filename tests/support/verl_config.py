"""The part of verl's config that the rules of `raydebug check` reckon with."""

from __future__ import annotations

from typing import Any

ACTOR, ROLLOUT = "actor_rollout_ref__actor", "actor_rollout_ref__rollout"


def config(**changed: Any) -> dict[str, Any]:
    """Return the part of verl's config that is reckoned with; `a__b=1` changes a.b."""
    whole: dict[str, Any] = {
        "data": {"train_batch_size": 64, "max_prompt_length": 512, "max_response_length": 512, "gen_batch_size": None},
        "trainer": {"n_gpus_per_node": 8, "nnodes": 1, "use_v1": True, "logger": ["console"], "total_epochs": 1},
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
        "critic": {"enable": None, "ppo_mini_batch_size": 32, "ppo_micro_batch_size_per_gpu": 4, "fsdp": {}},
        "actor_rollout_ref": {
            "actor": {"ppo_mini_batch_size": 32, "ppo_micro_batch_size": None, "ppo_micro_batch_size_per_gpu": 4,
                      "use_kl_loss": False, "fsdp_config": {"model_dtype": "fp32"}},
            "ref": {"log_prob_micro_batch_size_per_gpu": None, "log_prob_micro_batch_size": None},
            "rollout": {"name": "vllm", "n": 4, "tensor_model_parallel_size": 2, "log_prob_micro_batch_size": None,
                        "log_prob_micro_batch_size_per_gpu": 8, "max_num_seqs": 256, "max_num_batched_tokens": 8192,
                        "gpu_memory_utilization": 0.5, "dtype": "bfloat16", "max_model_len": None},
            "model": {"override_config": {}, "use_remove_padding": True},
        },
    }  # fmt: skip
    for path, value in changed.items():
        *parts, last = path.split("__")
        node = whole
        for part in parts:
            node = node[part]
        node[last] = value
    return whole
