"""The keys of verl's three trainers for supervised fine-tuning, release by release.

Source: verl trainer/config/sft_trainer.yaml (fsdp_sft_trainer, to 0.7.0) and sft_trainer_engine.yaml with its parts
model/hf_model, engine/fsdp and optim/fsdp (sft_trainer from 0.6.0, sft_trainer_ray from 0.7.0).
How many processes there are says torchrun, not the config: Source: verl 0.9.1 trainer/sft_trainer.py.
"""

from __future__ import annotations

from raydebug.profile.keys import GONE, Column, Key, later

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
