#!/bin/bash
# verl's GRPO training of the tiny model on this CPU: train.sh [KEY=VALUE...]
python -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  data.train_files=data/train.parquet \
  data.val_files=data/test.parquet \
  data.train_batch_size=4 \
  data.max_prompt_length=64 \
  data.max_response_length=16 \
  data.dataloader_num_workers=0 \
  actor_rollout_ref.model.path=model \
  +actor_rollout_ref.model.override_config.attn_implementation=sdpa \
  actor_rollout_ref.model.use_remove_padding=False \
  actor_rollout_ref.actor.strategy=fsdp2 \
  actor_rollout_ref.actor.ppo_mini_batch_size=4 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.n=2 \
  actor_rollout_ref.rollout.max_model_len=128 \
  actor_rollout_ref.rollout.enforce_eager=True \
  actor_rollout_ref.rollout.free_cache_engine=False \
  +actor_rollout_ref.rollout.enable_sleep_mode=False \
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \
  actor_rollout_ref.rollout.agent.num_workers=1 \
  +actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend=uni \
  reward.num_workers=1 \
  reward.custom_reward_function.path=data/reward.py \
  transfer_queue.backend.SimpleStorage.num_data_storage_units=1 \
  trainer.device=cpu \
  trainer.n_gpus_per_node=1 \
  trainer.logger=[console] \
  trainer.total_training_steps=2 \
  trainer.val_before_train=False \
  trainer.save_freq=-1 \
  ray_kwargs.ray_init.num_cpus=8 \
  +ray_kwargs.ray_init.num_gpus=1 \
  "$@"
