"""The keys of verl's programs for supervised fine-tuning and for generation, release by release."""

from __future__ import annotations

from raydebug.trainers.trainer import GONE, Column, Key, later
from raydebug.trainers.verl.keys_ppo import PPO

# Fine-tuning. Source: verl trainer/config/sft_trainer.yaml (fsdp_sft_trainer, to 0.7.0) and sft_trainer_engine.yaml
# with its parts model/hf_model, engine/fsdp and optim/fsdp (sft_trainer from 0.6.0, sft_trainer_ray from 0.7.0). The
# number of processes is torchrun's, not the config's: verl 0.9.1 trainer/sft_trainer.py.
_COMMON: Column = {
    "steps": Key("trainer.total_training_steps"),
    "epochs": Key("trainer.total_epochs", 4),
    "sequence_tokens": Key("data.max_length", 1024),
    "truncation": Key("data.truncation", "error"),
    # Source: torch 2.13.0 distributed/run.py:425.
    "gpus_per_node": Key("--nproc_per_node", 1),
    "nodes": Key("--nnodes", 1),
    "train_batch_size": Key("data.train_batch_size", 256),
    "validate_every": Key("trainer.test_freq", -1),
    "save_every": Key("trainer.save_freq", -1),
    # At its last step the trainer saves, whatever save_every says, and notes that as the newest: Source: verl 0.4.0
    # trainer/fsdp_sft_trainer.py:553, 0.9.1 utils/checkpoint/checkpoint_handler.py:save_checkpoint.
    "save_to": Key("trainer.default_local_dir", "checkpoints/${trainer.project_name}/${trainer.experiment_name}"),
    "copy_to": Key("trainer.default_hdfs_dir"),
    "log_to": Key("trainer.logger", ("console", "wandb")),
    "train_data": Key("data.train_files", "~/data/gsm8k/train.parquet"),
}

_FSDP_0_4_0 = later(
    _COMMON,
    micro_batch_size=Key("data.micro_batch_size_per_gpu", 4, instead_of=("data.micro_batch_size",)),
    sequence_parallel=Key("ulysses_sequence_parallel_size", 1),
    val_data=Key("data.val_files", "~/data/gsm8k/test.parquet"),
    model=Key("model.partial_pretrain", "~/models/gemma-1.1-7b-it"),
    actor_strategy=Key("model.strategy", "fsdp2"),
    remove_padding=Key("use_remove_padding", False),
    gradient_checkpointing=Key("model.enable_gradient_checkpointing", False),
    offload_parameters=Key("model.fsdp_config.offload_params", False),
)
_FSDP_0_4_1 = later(_FSDP_0_4_0, gradient_checkpointing=Key("model.enable_gradient_checkpointing", True))
_FSDP_0_5_0 = later(
    _FSDP_0_4_1,
    device=Key("trainer.device", "cuda"),
    resume=Key("trainer.resume_mode", "auto"),
    save_what=Key("trainer.checkpoint.save_contents", ("model", "optimizer", "extra")),
)
_FSDP_0_6_1 = later(
    _FSDP_0_5_0,
    train_samples=Key("data.train_max_samples", -1),
    val_samples=Key("data.val_max_samples", -1),
)

# Gone with 0.7.1, which has sft_trainer alone.
FSDP_SFT: dict[str, Column] = {
    "0.4.0": _FSDP_0_4_0,
    "0.4.1": _FSDP_0_4_1,
    "0.5.0": _FSDP_0_5_0,
    "0.6.0": _FSDP_0_5_0,
    "0.6.1": _FSDP_0_6_1,
    "0.7.0": _FSDP_0_6_1,
    "0.7.1": GONE,
}

_0_6_0 = later(
    _COMMON,
    micro_batch_size=Key("data.micro_batch_size_per_gpu", 4),
    sequence_parallel=Key("engine.ulysses_sequence_parallel_size", 1),
    val_data=Key("data.val_files"),
    resume=Key("trainer.resume_mode", "auto"),
    save_what=Key("checkpoint.save_contents", ("model", "optimizer", "extra")),
    compile_engine=Key("engine.use_torch_compile", True),
    device=Key("trainer.device", "cuda"),
    actor_strategy=Key("engine.strategy", "fsdp"),
    attention=Key("model.override_config.attn_implementation", added=True),
    remove_padding=Key("model.use_remove_padding", False),
    fused_kernels=Key("model.use_fused_kernels", False),
    gradient_checkpointing=Key("model.enable_gradient_checkpointing", True),
    offload_parameters=Key("engine.param_offload", False),
    offload_optimizer=Key("engine.optimizer_offload", False),
    model=Key("model.path", "~/models/deepseek-llm-7b-chat"),
    tokenizer=Key("model.tokenizer_path"),
    model_config=Key("model.hf_config_path"),
)
_0_6_1 = later(
    _0_6_0,
    train_samples=Key("data.train_max_samples", -1),
    val_samples=Key("data.val_max_samples", -1),
)
_0_7_0 = later(_0_6_1, remove_padding=Key("model.use_remove_padding", True))
_0_7_1 = later(_0_7_0, dataloader_workers=Key("data.num_workers", 8))

SFT: dict[str, Column] = {
    "0.6.0": _0_6_0,
    "0.6.1": _0_6_1,
    "0.7.0": _0_7_0,
    "0.7.1": _0_7_1,
    "0.8.0": _0_7_1,
    "0.9.0": _0_7_1,
}

# The same trainer started by Ray, which takes its number of processes from the config.
_BY_RAY = {"gpus_per_node": Key("trainer.n_gpus_per_node", 1), "nodes": Key("trainer.nnodes", 1)}
SFT_RAY: dict[str, Column] = {
    version: later(column, **_BY_RAY) for version, column in SFT.items() if version not in ("0.6.0", "0.6.1")
}

# Programs that only generate. Source: verl trainer/config/generation.yaml (main_generation, to 0.7.0);
# main_generation_server (from 0.6.0) reads the config of main_ppo. load_format is left out on purpose: no trainer sends
# these programs weights.
_GENERATION_0_4_0: Column = {
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
_GENERATION_0_4_1 = later(_GENERATION_0_4_0, device=Key("trainer.device", "cuda"))
_GENERATION_0_6_0 = later(
    _GENERATION_0_4_1,
    ray_cpus=Key("ray_kwargs.ray_init.num_cpus"),
    ray_gpus=Key("ray_kwargs.ray_init.num_gpus", added=True),
)

# Gone with 0.7.1, which has main_generation_server alone.
GENERATION: dict[str, Column] = {
    "0.4.0": _GENERATION_0_4_0,
    "0.4.1": _GENERATION_0_4_1,
    "0.5.0": _GENERATION_0_4_1,
    "0.6.0": _GENERATION_0_6_0,
    "0.6.1": _GENERATION_0_6_0,
    "0.7.0": _GENERATION_0_6_0,
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
