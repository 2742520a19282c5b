"""The options of OpenRLHF's training, release by release: our setting words in its keys."""

from __future__ import annotations

from raydebug.trainers.trainer import Column, Key, later

# The options of openrlhf.cli.train_ppo_ray, release by release, without their leading dashes.
# Source: OpenRLHF openrlhf/cli/train_ppo_ray.py at the tags v0.8.0, v0.9.0, v0.9.8, v0.9.9 and v0.9.10, at ed62d0e2
# (0.10.2, the first release with dotted names) and at 3c3be623 (0.11.0). `log_to` has no key on purpose: wandb's option
# is its key, and a profile prints what it changes.
_0_8_0: Column = {
    "epochs": Key("num_episodes", 1),
    "prompt_tokens": Key("prompt_max_len", 1024),
    "response_tokens": Key("generate_max_len", 1024),
    "gpus_per_node": Key("actor_num_gpus_per_node", 8),
    "nodes": Key("actor_num_nodes", 1),
    "tensor_parallel": Key("vllm_tensor_parallel_size", 1),
    "train_batch_size": Key("rollout_batch_size", 1024),  # prompts of a step
    "rollouts_per_prompt": Key("n_samples_per_prompt", 1),
    "mini_batch_size": Key("train_batch_size", 128),  # samples of an update
    "micro_batch_size": Key("micro_train_batch_size", 4),
    "rollout_log_prob_micro_batch_size": Key("micro_rollout_batch_size", 8),
    "train_samples": Key("max_samples", 1e8),
    "validate_every": Key("eval_steps", -1),
    "save_every": Key("save_steps", -1),
    "save_to": Key("save_path", "./ckpt"),
    "resume": Key("load_checkpoint", False, values={"disable": "false"}),
    "gpu_memory": Key("vllm_gpu_memory_utilization", 0.95),
    "eager_rollout": Key("enforce_eager", False),
    "compile_actor": Key("deepcompile", False),
    "gradient_checkpointing": Key("gradient_checkpointing", False),
    "offload_optimizer": Key("adam_offload", False),
    "sleep_mode": Key("vllm_enable_sleep", False),
    "model": Key("pretrain"),
    "critic_model": Key("critic_pretrain", only_with="critic"),
    "train_data": Key("prompt_data"),
    "val_data": Key("eval_dataset"),
}
_0_9_0 = later(
    _0_8_0,
    generation_batch_size=Key("vllm_generate_batch_size"),
    attention=Key("attn_implementation", "flash_attention_2"),
)
_0_9_8 = later(_0_9_0, "prompt_tokens", response_tokens=Key("max_new_tokens"))
_0_9_10 = later(_0_9_8, dataloader_workers=Key("dataloader_num_workers", 0))
_0_10_2: Column = {
    "epochs": Key("train.num_episodes", 1),
    "response_tokens": Key("rollout.max_new_tokens"),
    "gpus_per_node": Key("actor.num_gpus_per_node", 8),
    "nodes": Key("actor.num_nodes", 1),
    "tensor_parallel": Key("vllm.tensor_parallel_size", 1),
    "train_batch_size": Key("rollout.batch_size", 1024),
    "generation_batch_size": Key("rollout.vllm_generate_batch_size"),
    "rollouts_per_prompt": Key("rollout.n_samples_per_prompt", 1),
    "mini_batch_size": Key("train.batch_size", 128),
    "micro_batch_size": Key("train.micro_batch_size", 1),
    "rollout_log_prob_micro_batch_size": Key("rollout.micro_batch_size", 1),
    "train_samples": Key("data.max_samples", 100000000),
    "dataloader_workers": Key("data.dataloader_num_workers", 0),
    "validate_every": Key("eval.steps", -1),
    "save_every": Key("ckpt.save_steps", -1),
    "save_to": Key("ckpt.output_dir", "./ckpt"),
    "resume": Key("ckpt.load_enable", False, values={"disable": "false"}),
    "gpu_memory": Key("vllm.gpu_memory_utilization", 0.95),
    "eager_rollout": Key("vllm.enforce_eager", False),
    "compile_actor": Key("ds.deepcompile", False),
    "attention": Key("ds.attn_implementation", "flash_attention_2"),
    "gradient_checkpointing": Key("actor.gradient_checkpointing_enable", False),
    "offload_optimizer": Key("ds.adam_offload", False),
    "sleep_mode": Key("vllm.enable_sleep", False),
    "model": Key("actor.model_name_or_path"),
    "critic_model": Key("critic.model_name_or_path", only_with="critic"),
    "train_data": Key("data.prompt_dataset"),
    "val_data": Key("eval.dataset"),
}

PPO: dict[str, Column] = {
    "0.8.0": _0_8_0,
    "0.9.0": _0_9_0,
    "0.9.8": _0_9_8,
    "0.9.10": _0_9_10,
    "0.10.0": _0_9_10,
    "0.10.2": _0_10_2,
    "0.11.0": _0_10_2,
}
