"""Our setting words, and what each trainer calls them in each of its versions.

One row per word; a column per trainer and version. A version that renames a key gets a column of its own, and only
the rows that differ are written again. Source of keys and defaults: verl 0.9.1
trainer/config/_generated_ppo_trainer.yaml; a contract test holds them against the installed verl.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Value: TypeAlias = int | float | bool | str | None
_ACTOR, _REF, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
_MODEL = "actor_rollout_ref.model"


@dataclass(frozen=True)
class Key:
    """What a trainer calls a setting.

    Args:
        path: its Hydra key.
        default: what the trainer takes when nobody says.
        added: not in the trainer's own config, so that Hydra must be told to add it.
        instead_of: keys for the same thing that may not stand beside it.
        only_with: the part of the training that must be in use: `critic`.
    """

    path: str
    default: Value = None
    added: bool = False
    instead_of: tuple[str, ...] = ()
    only_with: str | None = None


PPO_0_9: dict[str, Key] = {
    # how long
    "steps": Key("trainer.total_training_steps"),
    "train_samples": Key("data.train_max_samples", -1),
    "val_samples": Key("data.val_max_samples", -1),
    "prompt_tokens": Key("data.max_prompt_length", 512),
    "response_tokens": Key("data.max_response_length", 512),
    # how wide
    "gpus_per_node": Key("trainer.n_gpus_per_node", 8),
    "nodes": Key("trainer.nnodes", 1),
    "tensor_parallel": Key(f"{_ROLLOUT}.tensor_model_parallel_size", 2),
    "train_batch_size": Key("data.train_batch_size", 1024),
    "rollouts_per_prompt": Key(f"{_ROLLOUT}.n", 1),
    "mini_batch_size": Key(f"{_ACTOR}.ppo_mini_batch_size", 256),
    "micro_batch_size": Key(f"{_ACTOR}.ppo_micro_batch_size_per_gpu", instead_of=(f"{_ACTOR}.ppo_micro_batch_size",)),
    "rollout_log_prob_micro_batch_size": Key(
        f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu", instead_of=(f"{_ROLLOUT}.log_prob_micro_batch_size",)
    ),
    "ref_log_prob_micro_batch_size": Key(
        f"{_REF}.log_prob_micro_batch_size_per_gpu", instead_of=(f"{_REF}.log_prob_micro_batch_size",)
    ),
    "critic_mini_batch_size": Key("critic.ppo_mini_batch_size", 256, only_with="critic"),
    "critic_micro_batch_size": Key(
        "critic.ppo_micro_batch_size_per_gpu", instead_of=("critic.ppo_micro_batch_size",), only_with="critic"
    ),
    # how many processes
    "dataloader_workers": Key("data.dataloader_num_workers", 8),
    "agent_workers": Key(f"{_ROLLOUT}.agent.num_workers", 8),
    "reward_workers": Key("reward.num_workers", 8),
    "storage_units": Key("transfer_queue.backend.SimpleStorage.num_data_storage_units", 8),
    # around the training
    "validate_first": Key("trainer.val_before_train", True),
    "validate_every": Key("trainer.test_freq", -1),
    "save_every": Key("trainer.save_freq", -1),
    "resume": Key("trainer.resume_mode", "auto"),
    "log_to": Key("trainer.logger", "[console,wandb]"),
    # compiled code
    "eager_rollout": Key(f"{_ROLLOUT}.enforce_eager", False),
    "compile_actor": Key(f"{_ACTOR}.use_torch_compile", True),
    "compile_engine": Key(f"{_ACTOR}.fsdp_config.use_torch_compile", True),
    "compile_ref": Key(f"{_REF}.fsdp_config.use_torch_compile", True),
    # the device, and what only some devices have
    "device": Key("trainer.device", "cuda"),
    "actor_strategy": Key(f"{_ACTOR}.strategy", "fsdp"),
    "critic_strategy": Key("critic.strategy", "fsdp", only_with="critic"),
    "attention": Key(f"{_MODEL}.override_config.attn_implementation", added=True),
    "remove_padding": Key(f"{_MODEL}.use_remove_padding", True),
    "critic_remove_padding": Key("critic.model.use_remove_padding", True, only_with="critic"),
    "fused_kernels": Key(f"{_MODEL}.use_fused_kernels", False),
    "gradient_checkpointing": Key(f"{_MODEL}.enable_gradient_checkpointing", True),
    "critic_gradient_checkpointing": Key("critic.model.enable_gradient_checkpointing", True, only_with="critic"),
    "offload_parameters": Key(f"{_ACTOR}.fsdp_config.param_offload", False),
    "offload_optimizer": Key(f"{_ACTOR}.fsdp_config.optimizer_offload", False),
    "offload_ref": Key(f"{_REF}.fsdp_config.param_offload", False),
    "free_cache": Key(f"{_ROLLOUT}.free_cache_engine", True),
    "sleep_mode": Key(f"{_ROLLOUT}.enable_sleep_mode", True, added=True),
    "rollout_executor": Key(f"{_ROLLOUT}.engine_kwargs.vllm.distributed_executor_backend", "mp", added=True),
    "rollout_model_tokens": Key(f"{_ROLLOUT}.max_model_len"),
    "rollout_sequences": Key(f"{_ROLLOUT}.max_num_seqs", 256),
    "rollout_batched_tokens": Key(f"{_ROLLOUT}.max_num_batched_tokens", 8192),
    "weight_bucket_mib": Key(f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes", 2048),
    # Ray
    "ray_cpus": Key("ray_kwargs.ray_init.num_cpus"),
    "ray_gpus": Key("ray_kwargs.ray_init.num_gpus", added=True),
}

COLUMNS: dict[tuple[str, str], dict[str, Key]] = {("ppo", "0.9"): PPO_0_9}
WORDS = frozenset().union(*COLUMNS.values())


def keys_of(trainer: str, version: str) -> dict[str, Key] | None:
    """Return the column of one trainer for an installed version such as `0.9.1`; None where there is none."""
    return COLUMNS.get((trainer, ".".join(version.split(".")[:2])))
