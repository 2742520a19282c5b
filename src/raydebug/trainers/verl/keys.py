"""The keys of verl's programs, release by release: main_ppo, fine-tuning and generation.

Source of main_ppo: verl trainer/config/ppo_trainer.yaml (0.4), _generated_ppo_trainer.yaml (0.5 to 0.9), as their
wheels have it. A word is in a column when the trainer reads the setting, whether its own config lists it (`added`)
or not.
"""

from __future__ import annotations

from raydebug.trainers.trainer import GONE, Column, Key, ValueOf, later
from raydebug.trainers.verl.easyr1 import EASYR1

_ACTOR, _REF, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
_MODEL = "actor_rollout_ref.model"
_CRITIC, _IMAGES = "critic", "large images"
_MICRO = "ppo_micro_batch_size_per_gpu"
_LOG_PROB = "log_prob_micro_batch_size"

_0_4_0: Column = {
    # how long
    "steps": Key("trainer.total_training_steps"),
    "epochs": Key("trainer.total_epochs", 30),
    "prompt_tokens": Key("data.max_prompt_length", 512),
    "response_tokens": Key("data.max_response_length", 512),
    "truncation": Key("data.truncation", "error"),
    # how wide
    "gpus_per_node": Key("trainer.n_gpus_per_node", 8),
    "nodes": Key("trainer.nnodes", 1),
    "tensor_parallel": Key(f"{_ROLLOUT}.tensor_model_parallel_size", 2),
    "sequence_parallel": Key(f"{_ACTOR}.ulysses_sequence_parallel_size", 1),
    "train_batch_size": Key("data.train_batch_size", 1024),
    # Read with .get() before 0.9: Source: verl 0.4.1 trainer/ppo/ray_trainer.py:_create_dataloader.
    "generation_batch_size": Key("data.gen_batch_size", added=True),
    "rollouts_per_prompt": Key(f"{_ROLLOUT}.n", 1),
    # Of recipes and their forks. Source: verl 0.7 recipe/dapo/config, experimental/one_step_off_policy/config,
    # experimental/fully_async_policy/config; PRIME 4f6ad1f5 training/verl/trainer/config (n_samples).
    "filter_groups": Key("algorithm.filter_groups.enable", False, listed_only=True),
    "filter_accuracy": Key("data.filter_accuracy", False, listed_only=True),
    # Not above the length of an answer, which DAPO's reward manager asserts, in 0.5 to 0.7.0 even where it is not
    # enabled, and not 0 where it is: verl 0.5.0 and 0.9.1 workers/reward_manager/dapo.py. The first is the recipe's.
    "overlong_tokens": Key("reward_model.overlong_buffer.len", 0, listed_only=True),
    "overlong_manager_tokens": Key("reward_model.reward_kwargs.overlong_buffer_cfg.len", 0, listed_only=True),
    "overlong_reward_tokens": Key("reward.reward_kwargs.overlong_buffer_cfg.len", 0, listed_only=True),
    "rollout_gpus_per_node": Key("rollout.n_gpus_per_node", 8, listed_only=True),
    "rollout_nodes": Key("rollout.nnodes", 1, listed_only=True),
    "async_samples": Key("rollout.total_rollout_steps", 100, listed_only=True),
    "sync_every": Key("async_training.trigger_parameter_sync_step", 4, listed_only=True),
    "async_batches": Key("async_training.require_batches", 1, listed_only=True),
    "rollouts_per_agent": Key(f"{_ROLLOUT}.n_agent", 1, listed_only=True),
    "samples_per_prompt": Key("data.n_samples", 1, listed_only=True),
    "mini_batch_size": Key(f"{_ACTOR}.ppo_mini_batch_size", 256),
    "micro_batch_size": Key(f"{_ACTOR}.{_MICRO}", instead_of=(f"{_ACTOR}.ppo_micro_batch_size",)),
    "rollout_log_prob_micro_batch_size": Key(
        f"{_ROLLOUT}.{_LOG_PROB}_per_gpu", instead_of=(f"{_ROLLOUT}.{_LOG_PROB}",)
    ),
    "ref_log_prob_micro_batch_size": Key(f"{_REF}.{_LOG_PROB}_per_gpu", instead_of=(f"{_REF}.{_LOG_PROB}",)),
    "critic_mini_batch_size": Key(
        "critic.ppo_mini_batch_size", f"${{{_ACTOR}.ppo_mini_batch_size}}", only_with=_CRITIC
    ),
    "critic_micro_batch_size": Key(f"critic.{_MICRO}", instead_of=("critic.ppo_micro_batch_size",), only_with=_CRITIC),
    # around the training
    # Read with .get(), so a config of before 0.3 lacks it: Source: Search-R1 598e61bd verl/trainer/ppo/ray_trainer.py.
    "validate_first": Key("trainer.val_before_train", True, read_anyway=True),
    # Read with .get(): Source: verl 0.4.0 trainer/ppo/ray_trainer.py:975.
    "validate_only": Key("trainer.val_only", False, added=True),
    "validate_every": Key("trainer.test_freq", -1),
    "save_every": Key("trainer.save_freq", -1),
    "resume": Key("trainer.resume_mode", "auto"),
    "log_to": Key("trainer.logger", ("console", "wandb")),
    "rollouts_to": Key("trainer.rollout_data_dir"),
    "validations_to": Key("trainer.validation_data_dir"),
    # how the rollout engine gets its weights
    # Source: verl 0.4.1 workers/rollout/vllm_rollout/vllm_rollout_spmd.py:135. With LoRA only the adapter is sent over.
    "load_format": Key(
        f"{_ROLLOUT}.load_format", "dummy_dtensor", only_with="whole weights", values={"dummy": "dummy_dtensor"}
    ),
    "gpu_memory": Key(f"{_ROLLOUT}.gpu_memory_utilization", 0.5),
    # compiled code
    "eager_rollout": Key(f"{_ROLLOUT}.enforce_eager", True),
    "compile_actor": Key(f"{_ACTOR}.use_torch_compile", True),
    # the device, and what only some devices have
    "device": Key("trainer.device", "cuda"),
    "actor_strategy": Key(f"{_ACTOR}.strategy", "fsdp"),
    "critic_strategy": Key("critic.strategy", "fsdp", only_with=_CRITIC),
    "attention": Key(f"{_MODEL}.override_config.attn_implementation", added=True),
    "remove_padding": Key(f"{_MODEL}.use_remove_padding", False),
    "critic_remove_padding": Key("critic.model.use_remove_padding", False, only_with=_CRITIC),
    "critic_sequence_parallel": Key("critic.ulysses_sequence_parallel_size", 1, only_with=_CRITIC),
    "fused_kernels": Key(f"{_MODEL}.use_fused_kernels", False),
    "gradient_checkpointing": Key(f"{_MODEL}.enable_gradient_checkpointing", True),
    "critic_gradient_checkpointing": Key("critic.model.enable_gradient_checkpointing", True, only_with=_CRITIC),
    "offload_parameters": Key(f"{_ACTOR}.fsdp_config.param_offload", False),
    "offload_optimizer": Key(f"{_ACTOR}.fsdp_config.optimizer_offload", False),
    "offload_ref": Key(f"{_REF}.fsdp_config.param_offload", False),
    "free_cache": Key(f"{_ROLLOUT}.free_cache_engine", True),
    "rollout_model_tokens": Key(f"{_ROLLOUT}.max_model_len"),
    "rollout_sequences": Key(f"{_ROLLOUT}.max_num_seqs", 1024),
    "rollout_batched_tokens": Key(f"{_ROLLOUT}.max_num_batched_tokens", 8192),
    # Ray
    "ray_cpus": Key("ray_init.num_cpus"),
    "ray_gpus": Key("ray_init.num_gpus", added=True),
    # what is trained on what
    "model": Key(f"{_MODEL}.path", "~/models/deepseek-llm-7b-chat"),
    "critic_model": Key("critic.model.path", "~/models/deepseek-llm-7b-chat", only_with=_CRITIC),
    "train_data": Key("data.train_files", "~/data/rlhf/gsm8k/train.parquet"),
    "val_data": Key("data.val_files", "~/data/rlhf/gsm8k/test.parquet"),
    "prompt_column": Key("data.prompt_key", "prompt"),
    "reward_function": Key("custom_reward_function.path"),
    "reward_function_name": Key("custom_reward_function.name", "compute_score"),
}

_0_4_1 = later(
    _0_4_0,
    validate_only=Key("trainer.val_only", False),
    critic_strategy=Key("critic.strategy", f"${{{_ACTOR}.strategy}}", only_with=_CRITIC),
)

_0_5_0 = later(
    _0_4_1,
    dataloader_workers=Key("data.dataloader_num_workers", 8),
    agent_workers=Key(f"{_ROLLOUT}.agent.num_workers", 8),
    critic_mini_batch_size=Key(
        "critic.ppo_mini_batch_size", f"${{oc.select:{_ACTOR}.ppo_mini_batch_size,256}}", only_with=_CRITIC
    ),
    critic_micro_batch_size=Key(
        f"critic.{_MICRO}",
        "${oc.select:.ppo_micro_batch_size,null}",
        instead_of=("critic.ppo_micro_batch_size",),
        only_with=_CRITIC,
    ),
    critic_strategy=Key("critic.strategy", "fsdp", only_with=_CRITIC),
    weight_bucket_mib=Key(f"{_ROLLOUT}.update_weights_bucket_megabytes", 512),
)

_0_6_0 = later(
    _0_5_0,
    load_format=Key(f"{_ROLLOUT}.load_format", "dummy", only_with="whole weights"),
    eager_rollout=Key(f"{_ROLLOUT}.enforce_eager", False),
    compile_engine=Key(f"{_ACTOR}.fsdp_config.use_torch_compile", True),
    compile_ref=Key(f"{_REF}.fsdp_config.use_torch_compile", True),
    reuse_rollouts=Key(f"{_ROLLOUT}.skip_rollout", False),
    ray_cpus=Key("ray_kwargs.ray_init.num_cpus"),
    ray_gpus=Key("ray_kwargs.ray_init.num_gpus", added=True),
    tokenizer=Key(f"{_MODEL}.tokenizer_path"),
    model_config=Key(f"{_MODEL}.hf_config_path"),
)

_0_6_1 = later(
    _0_6_0,
    train_samples=Key("data.train_max_samples", -1),
    val_samples=Key("data.val_max_samples", -1),
)

# skip_rollout is in 0.7.0's config and does nothing: it wraps the worker group, and rollouts are asked of the async
# manager. Source: verl 0.7.0 trainer/ppo/ray_trainer.py:1307; 0.7.1 ray_trainer.py:1266 wraps the manager.
_0_7_0 = later(
    _0_6_1,
    "reuse_rollouts",
    remove_padding=Key(f"{_MODEL}.use_remove_padding", True),
)

_0_7_1 = later(
    _0_7_0,
    reuse_rollouts=Key(f"{_ROLLOUT}.skip_rollout", False),
    reward_workers=Key("reward.num_workers", 8),
    reward_function=Key("reward.custom_reward_function.path", instead_of=("custom_reward_function.path",)),
    reward_function_name=Key(
        "reward.custom_reward_function.name", "compute_score", instead_of=("custom_reward_function.name",)
    ),
    weight_bucket_mib=Key(f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes", 2048),
)

_0_8_0 = later(
    _0_7_1,
    reuse_rollouts=Key(f"{_ROLLOUT}.skip.enable", False),
    reuse_steps=Key(f"{_ROLLOUT}.skip.max_dump_step", 1, values={"[1,2]": "2"}),
    critic_remove_padding=Key("critic.model.use_remove_padding", True, only_with=_CRITIC),
    storage_units=Key("transfer_queue.backend.SimpleStorage.num_data_storage_units", 8),
)

# The two trainers of 0.9 have a switch each: skip.rollout_tq is that of the default one, skip.rollout that of
# trainer.use_v1=False. Source: verl 0.9.1 utils/skip/rollout_skip.py.
_0_9_0 = later(
    _0_8_0,
    reuse_rollouts=Key("skip.rollout_tq.enable", False, also=("skip.rollout.enable",)),
    reuse_steps=Key("skip.rollout_tq.steps", (), also=("skip.rollout.steps",)),
    reuse_folder=Key("skip.rollout_tq.dump_dir", "~/.verl/rollout_dump", also=("skip.rollout.dump_dir",)),
    # Parts of the path of kept rollouts: names with a date differ in each run.
    experiment=Key("trainer.experiment_name", "gsm8k"),
    project=Key("trainer.project_name", "verl_examples"),
    # Read with .get() or by name: Source: verl 0.9.1 trainer/main_ppo.py init_agent_loop_manager, get_trainer_cls.
    trainer_mode=Key("trainer.v1.trainer_mode", "sync"),
    newer_trainer=Key("trainer.use_v1", True),
    rollout_manager=Key(f"{_ROLLOUT}.agent.agent_loop_manager_class", added=True),
    forward_only=Key(f"{_ACTOR}.fsdp_config.forward_only", False),
    generation_batch_size=Key("data.gen_batch_size"),
    rollout_sequences=Key(f"{_ROLLOUT}.max_num_seqs", 256),
    # Read by verl's dataclass, not in its yaml. Source: verl 0.9.1 workers/config/rollout.py.
    sleep_mode=Key(f"{_ROLLOUT}.enable_sleep_mode", True, added=True),
    rollout_executor=Key(f"{_ROLLOUT}.engine_kwargs.vllm.distributed_executor_backend", "mp", added=True),
    # Passed on to the model's processor, in the dataset, the actor and vLLM; it takes both or neither. The defaults
    # are those of Qwen2.5-VL's preprocessor_config.json. Source: verl 0.9.1 utils/tokenizer/tokenizer.py
    # build_multimodal_processor_inputs, transformers 5.9.0 image_processing_qwen2_vl.py _standardize_kwargs.
    image_pixels=Key("data.mm_processor_kwargs.max_pixels", 12845056, added=True, only_with=_IMAGES),
    image_pixels_least=Key("data.mm_processor_kwargs.min_pixels", 3136, added=True, only_with=_IMAGES),
)

PPO: dict[str, Column] = {
    "0.4.0": _0_4_0,
    "0.4.1": _0_4_1,
    "0.5.0": _0_5_0,
    "0.6.0": _0_6_0,
    "0.6.1": _0_6_1,
    "0.7.0": _0_7_0,
    "0.7.1": _0_7_1,
    "0.8.0": _0_8_0,
    "0.9.0": _0_9_0,
}


def needs_critic(value_of: ValueOf) -> bool:
    """Return whether a training with these values has a critic.

    Source: verl 0.9.1 trainer/ppo/utils.py need_critic: the estimator gae needs one, and gae is the default;
    critic.enable from 0.6 on. 0.4.1 trainer/ppo/ray_trainer.py:345 asks the estimator alone.
    """
    asked = str(value_of("critic.enable")).lower()
    estimator = str(value_of("algorithm.adv_estimator") or "gae").strip("'\"")
    return asked == "true" or (asked in ("", "null", "none") and estimator == "gae")


def is_in_use(part: str, value_of: ValueOf) -> bool:
    """Return whether a training with these values has a part, as `Key.only_with` names it."""
    if part == _CRITIC:
        return needs_critic(value_of)
    if part == _IMAGES:
        from raydebug.trainers.verl.vision import takes_large_images

        return takes_large_images(str(value_of(f"{_MODEL}.path")))
    assert part == "whole weights", part
    # Source: verl 0.4.1 to 0.9.1 config: lora_rank 0 means no LoRA; 0.8 and later have model.lora.rank too.
    ranks = (value_of(f"{_MODEL}.{key}") for key in ("lora_rank", "lora.rank"))
    return all(rank in (None, 0, "0") for rank in ranks)


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

TABLES: dict[str, dict[str, Column]] = {
    "ppo": PPO,
    "easyr1": EASYR1,
    "sft": SFT,
    "sft_ray": SFT_RAY,
    "fsdp_sft": FSDP_SFT,
    "generation": GENERATION,
    "generation_server": GENERATION_SERVER,
}
