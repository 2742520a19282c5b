"""What `raydebug check` needs of main_ppo: words for its keys, its use of vLLM, rewards and memory."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from raydebug.findings import Finding
from raydebug.trainers.config import RewardFunction, TrainingConfig, value_at
from raydebug.trainers.trainer import FilesRead
from raydebug.trainers.verl import config_rules
from raydebug.trainers.verl.keys_ppo import PPO, needs_critic

_MODEL, _ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.rollout"
# Keys without a word in the profiles. Source: verl 0.9.1 _generated_ppo_trainer.yaml.
_KEYS = {
    "trust_remote_code": f"{_MODEL}.trust_remote_code",
    "data_trust_remote_code": "data.trust_remote_code",
    "chat_template": f"{_MODEL}.custom_chat_template",
    "template_options": "data.apply_chat_template_kwargs",
    "filter_long_prompts": "data.filter_overlong_prompts",
    "rollout_dtype": f"{_ROLLOUT}.dtype",
    "vllm_options": f"{_ROLLOUT}.engine_kwargs.vllm",
    "attention_backend": f"{_ROLLOUT}.engine_kwargs.vllm.attention_backend",
    "reward_file": "reward.custom_reward_function.path",
    "reward_name": "reward.custom_reward_function.name",
}
_BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}
# What verl passes on to vLLM under the same name.
_SAME = ("dtype", "load_format", "max_model_len", "max_num_seqs", "enable_chunked_prefill", "max_num_batched_tokens",
         "enable_prefix_caching", "logprobs_mode", "enforce_eager", "gpu_memory_utilization", "disable_log_stats",
         "seed", "quantization", "scheduling_policy")  # fmt: skip


class PpoChecks:
    """main_ppo behind the protocol `Checks`."""

    keys: Mapping[str, str] = {word: key.path for word, key in next(reversed(PPO.values())).items()} | _KEYS

    def compose(self, arguments: Sequence[str]) -> tuple[Any, dict[str, Any]]:
        from raydebug.trainers.verl.hydra_config import compose, plain

        live = compose(arguments)
        return live, plain(live)

    def refused(self, refusal: Mapping[str, Any], arguments: Sequence[str]) -> Finding:
        return config_rules.refused(refusal, arguments)

    def judge(self, config: TrainingConfig, facts: Mapping[str, Any], gpus: int | None) -> list[Finding]:
        return config_rules.judge_config(config.values, facts, gpus)

    def verdict(self, live: Any) -> dict[str, Any] | None:
        from raydebug.trainers.verl.hydra_config import ask_verl

        return ask_verl(live)

    def judge_verdict(self, refusal: Mapping[str, Any]) -> Finding:
        return config_rules.judge_verdict(refusal)

    def trained_bytes(self, config: TrainingConfig, parameters: int) -> int:
        """Return the bytes of actor and critic on each GPU.

        Source: verl 0.9.1 workers/engine/fsdp/transformer_impl.py: parameters, gradients and AdamW's two moments in
        fsdp_config.model_dtype, fp32 unless given, sharded over the ranks.
        """
        parts = ["actor_rollout_ref.actor.fsdp_config"]
        if needs_critic(partial(value_at, config.values)):
            parts.append("critic.fsdp")
        return sum(_sharded_bytes(parameters, value_at(config.values, part) or {}, config.ranks) for part in parts)

    def engine_options(self, config: TrainingConfig) -> dict[str, Any]:
        """Return the arguments that verl gives vLLM.

        Source: verl 0.9.1 workers/rollout/vllm_rollout/vllm_async_server.py:320 (launch_server), :1103 (max_model_len).
        """
        rollout = value_at(config.values, _ROLLOUT)
        own = {k: v for k, v in (config.get("vllm_options") or {}).items() if v is not None}
        return {
            "model": os.path.expanduser(str(config.get("model"))),  # noqa: PTH111 - as verl does
            "trust_remote_code": bool(config.get("trust_remote_code")),
            "enable_sleep_mode": bool(config.get("sleep_mode", True)),
            "tensor_parallel_size": config.get("tensor_parallel"),
            "worker_extension_cls": "verl.workers.rollout.vllm_rollout.utils.vLLMColocateWorkerExtension",
            **{name: rollout[name] for name in _SAME if rollout.get(name) is not None},
            **own,
        }

    def reward_function(self, config: TrainingConfig) -> RewardFunction:
        """Return the reward function that the config names.

        Source: verl 0.9.1 trainer/ppo/reward.py get_custom_reward_fn, experimental/reward_loop/reward_loop.py:59 (the
        older key wins if it is set).
        """
        older = value_at(config.values, "custom_reward_function") or {}
        newer = value_at(config.values, "reward.custom_reward_function") or {}
        chosen = older if older.get("path") else newer
        return RewardFunction(
            path=chosen.get("path"),
            name=chosen.get("name") or "compute_score",
            manager=value_at(config.values, "reward.reward_manager.name", "naive"),
            options=dict(chosen.get("reward_kwargs") or {}),
            by_model=bool(value_at(config.values, "reward.reward_model.enable")),
        )

    def own_reward(self) -> Callable[..., Any]:
        from verl.utils.reward_score import default_compute_score

        own: Callable[..., Any] = default_compute_score
        return own

    def reward_arguments(self, row: Mapping[str, Any], answer: str) -> dict[str, Any]:
        """Return the arguments of verl's naive reward manager.

        Source: verl 0.9.1 experimental/reward_loop/reward_manager/naive.py run_single.
        """
        return {
            "data_source": row["data_source"],
            "solution_str": answer,
            "ground_truth": row["reward_model"]["ground_truth"],
            "extra_info": {**copy.deepcopy(row.get("extra_info") or {}), "num_turns": 2, "rollout_reward_scores": {}},
        }

    def files_read(self, config: TrainingConfig) -> FilesRead:
        """Return models and data that a training reads. Source: verl 0.9.1 _generated_ppo_trainer.yaml."""
        paths = [config.get("model")]
        if needs_critic(partial(value_at, config.values)):
            paths.append(config.get("critic_model"))
        if self.reward_function(config).by_model:
            paths.append(value_at(config.values, "reward.reward_model.model_path"))
        data: list[Any] = []
        for word in ("train_data", "val_data"):
            named = config.get(word)
            data += named if isinstance(named, list) else [named]
        return FilesRead(
            [path for path in paths if isinstance(path, str) and path], [p for p in data if isinstance(p, str)]
        )


def _sharded_bytes(parameters: int, fsdp: Mapping[str, Any], ranks: int) -> int:
    number = _BYTES.get(str(fsdp.get("model_dtype") or "fp32"), 4)
    copies = (0 if fsdp.get("param_offload") else 1) + 1 + (0 if fsdp.get("optimizer_offload") else 2)
    return parameters * number * copies // max(1, ranks)
