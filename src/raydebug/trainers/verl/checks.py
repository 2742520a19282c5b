"""What `raydebug check` needs of main_ppo: its config, its rules, and its use of vLLM, rewards and memory.

The rules name overrides that Hydra refuses, missing values, and numbers that do not fit.
"""

from __future__ import annotations

import copy
import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from raydebug.findings import Finding, finding
from raydebug.trainers.checks import Checks
from raydebug.trainers.config import (
    BYTES,
    CannotCompose,
    Composed,
    RewardFunction,
    TrainingConfig,
    find_program_file,
    first_missing,
    value_at,
)
from raydebug.trainers.trainer import Program, Trainer
from raydebug.trainers.verl import plain_config
from raydebug.trainers.verl.batch_sizes import judge_batch
from raydebug.trainers.verl.config_files import (
    ConfigMissing,
    MainConfig,
    NotComposed,
    Overrides,
    choices_of,
    compose,
    key_of,
    main_config,
)
from raydebug.trainers.verl.keys import is_in_use, needs_critic
from raydebug.trainers.verl.patches import is_on_cpu

_MODEL, _ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.rollout"
# Keys without a word in the profiles, the newest first. Source: verl 0.9.1 _generated_ppo_trainer.yaml, 0.4.1
# ppo_trainer.yaml.
_KEYS = {
    "trust_remote_code": (f"{_MODEL}.trust_remote_code",),
    "data_trust_remote_code": ("data.trust_remote_code",),
    "chat_template": (f"{_MODEL}.custom_chat_template",),
    "image_column": ("data.image_key",),
    "image_options": ("data.mm_processor_kwargs",),
    "template_options": ("data.apply_chat_template_kwargs",),
    "filter_long_prompts": ("data.filter_overlong_prompts",),
    "rollout_dtype": (f"{_ROLLOUT}.dtype",),
    "vllm_options": (f"{_ROLLOUT}.engine_kwargs.vllm",),
    "attention_backend": (f"{_ROLLOUT}.engine_kwargs.vllm.attention_backend",),
    "data_class": ("data.custom_cls.path",),
    "reward_file": ("reward.custom_reward_function.path", "custom_reward_function.path"),
    "reward_name": ("reward.custom_reward_function.name", "custom_reward_function.name"),
}
# What verl passes on to vLLM under the same name.
_SAME = ("dtype", "load_format", "max_model_len", "max_num_seqs", "enable_chunked_prefill", "max_num_batched_tokens",
         "enable_prefix_caching", "logprobs_mode", "enforce_eager", "gpu_memory_utilization", "disable_log_stats",
         "seed", "quantization", "scheduling_policy")  # fmt: skip
MISSING = plain_config.MISSING
# Settings that must be whole numbers for these rules and for verl; None means "not set".
NUMBERS = (
    *("data.train_batch_size", "data.train_max_samples", "data.max_prompt_length", "data.max_response_length"),
    *("trainer.n_gpus_per_node", "trainer.nnodes", "actor_rollout_ref.rollout.n"),
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    *("actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"),
    *("actor_rollout_ref.rollout.max_num_seqs", "actor_rollout_ref.rollout.max_num_batched_tokens"),
)
MAY_BE_NONE = ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",)


# The programs whose config verl can be asked about: another one may register estimators and losses of its own. And
# the classes that verl may make of a config meanwhile.
ASKED = ("verl.trainer.main_ppo", "verl.trainer.main_ppo_sync")
_PARTS = {"import verl": "import", "validate_config": "config", "actor_rollout_ref.rollout": "rollout"}
_OWN_CLASS = re.compile(r"verl(\.[a-z]\w*)+\.[A-Z]\w*")


def targets_of(node: Any) -> Iterator[str]:
    """Yield what `_target_` names anywhere in a config."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key == "_target_":
                yield str(value)
            else:
                yield from targets_of(value)
    elif isinstance(node, list):
        for value in node:
            yield from targets_of(value)


class PpoChecks(Checks):
    """main_ppo, with the rules about its config, and how it uses vLLM and a reward."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer, "ppo", _KEYS, frozenset().union(*trainer.keys("ppo").values()))

    def compose(self, program: Program, argv: Sequence[str], *, folder: Path, search: Sequence[str]) -> Composed:
        said, unknown = plain_config.split_unread(argv[program.arguments_at :])
        file = find_program_file(program.module, argv[program.arguments_at - 1], folder, search)
        try:
            if file is None:
                raise NotComposed(f"there is no {argv[program.arguments_at - 1]} here, or it is not installed")
            main = main_config(file, Overrides(said))
            if first_missing("hydra", "omegaconf") is None:
                from raydebug.trainers.verl import hydra_config

                # What the shell decides has no value, and so has what refers to it.
                live = hydra_config.compose(main, [*said, *(f"{one.partition('=')[0]}=???" for one in unknown)])
                return Composed(live, without(hydra_config.plain(live), unknown), unknown=tuple(unknown))
            return Composed(None, without(_read(main, said, unknown, folder), unknown), unknown=tuple(unknown))
        except ConfigMissing as failure:
            raise CannotCompose("MissingConfig", str(failure)) from failure
        except (NotComposed, OSError) as failure:
            values: dict[str, Any] = {}
            plain_config.with_overrides(values, [f"++{one.lstrip('+')}" for one in said if key_of(one)])
            return Composed(None, plain_config.resolved(values), str(failure), tuple(unknown))

    def refused(self, refusal: Mapping[str, Any], arguments: Sequence[str]) -> Finding:
        """Return the finding for a command that cannot be composed."""
        message: str = refusal["message"]
        lines = [line.strip() for line in message.splitlines() if line.strip()]
        if refusal.get("kind") in ("MissingConfig", "MissingConfigException"):  # ours, and Hydra's
            return finding("command.override.config", lines="; ".join(lines))
        meant = re.search(r"Could not override '([^']+)'", message)
        if meant is None:
            marked = (o for o in arguments if any(c in o.partition("=")[2] for c in "[]{}()|$"))
            odd = next((o for o in arguments if o in message), "") or next(marked, "")
            key, cause = odd.partition("=")[0], "; ".join(lines[:2])
            if not odd:
                return finding("command.override.unreadable", lines=cause)
            return finding("command.override.syntax", odd=odd, key=key, lines=cause)
        key, keys = meant[1], refusal.get("keys") or []
        override = next((o for o in arguments if o.lstrip("+").partition("=")[0] == key), key)
        value = override.partition("=")[2]
        elsewhere = [k for k in keys if k.rpartition(".")[2] == key.rpartition(".")[2]]
        near = next(iter(difflib.get_close_matches(key, keys, n=1, cutoff=0.8) or elsewhere), "")
        changes: dict[str, str | None] = {key: None, near or f"+{key}": value}
        case = "new" if not near else "near" if value else "empty"
        reason = f": {message.strip().splitlines()[-3].strip()}" if message.count("\n") >= 3 else ""
        about: dict[str, Any] = {"key": key, "override": override, "near": near, "value": value, "reason": reason}
        return finding(f"command.override.key-{case}", overrides=changes, **about)

    def judge(self, config: TrainingConfig, facts: Mapping[str, Any], gpus: int | None) -> list[Finding]:
        """Return what is wrong with a config.

        Args:
            config: of the command.
            facts: `variables` and `gpus` of the machine, `program`, its module, and `is_release`: whether its version
                is a known one.
            gpus: of the cluster; None without one.
        """
        values = config.values
        wrong = list(_values(values))
        if wrong:
            return wrong  # the other rules would report the same values again
        variables = facts["variables"]
        on_cpu = is_on_cpu(variables)
        if gpus is None and not on_cpu and value_at(values, "trainer.nnodes") == 1:
            gpus = facts["gpus"]  # of this machine, on which the cluster would start
        # A fork may demand less of its batch sizes: Absolute-Zero-Reasoner, DrMAS have verl's assertions commented out.
        batch = judge_batch(values) if facts["is_release"] and facts["program"] in ASKED else ()
        return [*batch, *_parallel(config), *_gpus(config, gpus), *_loggers(values, variables)]

    def verdict(self, composed: Composed) -> dict[str, str] | None:
        """Return verl's own first refusal of a config; None if it accepts the config or was not asked."""
        if composed.live is None or composed.unknown:
            return None
        from raydebug.trainers.verl.hydra_config import ask_verl

        strange = next((name for name in targets_of(composed.values) if not _OWN_CLASS.fullmatch(name)), None)
        if strange is not None:  # verl's functions call what `_target_` names
            return None
        return ask_verl(composed.live)

    def judge_verdict(self, refusal: Mapping[str, Any]) -> Finding:
        """Return the finding for verl's own refusal."""
        reason = f"{refusal['type']}: {refusal['message'].strip().partition(chr(10))[0][:250]}"
        return finding(f"command.refused.{_PARTS.get(refusal['part'], 'value')}", reason=reason, refusal=refusal)

    def trained_bytes(self, config: TrainingConfig, parameters: int) -> int:
        """Return the bytes of actor and critic on each GPU.

        Source: verl 0.9.1 workers/engine/fsdp/transformer_impl.py: parameters, gradients and AdamW's two moments in
        fsdp_config.model_dtype, fp32 unless given, sharded over the ranks. With LoRA the adapter alone, which is small,
        has gradients and moments. With fsdp2's offload_policy all of them are on the CPU (:459).
        """
        value_of, ranks = partial(value_at, config.values), config.ranks or 1
        is_whole = is_in_use("whole weights", value_of)
        fsdp, offloads = value_of("actor_rollout_ref.actor.fsdp_config") or {}, partial(_offloads, config)
        taken = 0 if offloads("actor", fsdp) else _sharded_bytes(parameters, fsdp, ranks, whole=is_whole)
        if needs_critic(value_of):
            is_whole = not value_of("critic.model.lora_rank")
            fsdp = value_of("critic.fsdp") or {}
            taken += 0 if offloads("critic", fsdp) else _sharded_bytes(parameters, fsdp, ranks, whole=is_whole)
        return taken

    def engine_options(self, config: TrainingConfig) -> dict[str, object]:
        """Return the arguments that verl gives vLLM.

        Source: verl 0.9.1 workers/rollout/vllm_rollout/vllm_async_server.py:320 (launch_server), :1103 (max_model_len).
        """
        rollout = value_at(config.values, _ROLLOUT) or {}
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
        by_model = value_at(config.values, "reward_model.enable")
        if by_model is None:
            by_model = value_at(config.values, "reward.reward_model.enable")
        return RewardFunction(
            path=chosen.get("path"),
            name=chosen.get("name") or "compute_score",
            manager=str(
                value_at(config.values, "reward_model.reward_manager")
                or value_at(config.values, "reward.reward_manager.name")
                or "naive"
            ),
            options=dict(chosen.get("reward_kwargs") or {}),
            by_model=bool(by_model),
        )

    def own_reward(self) -> Callable[..., Any]:
        """Return verl's own reward function."""
        from verl.utils.reward_score import default_compute_score

        own: Callable[..., Any] = default_compute_score
        return own

    def reward_arguments(self, row: Mapping[str, Any], answer: str) -> dict[str, object]:
        """Return the arguments of verl's naive reward manager.

        Source: verl 0.9.1 experimental/reward_loop/reward_manager/naive.py run_single.

        Raises:
            KeyError, TypeError: the row lacks a column.
        """
        return {
            "data_source": row["data_source"],
            "solution_str": answer,
            "ground_truth": row["reward_model"]["ground_truth"],
            "extra_info": {**copy.deepcopy(row.get("extra_info") or {}), "num_turns": 2, "rollout_reward_scores": {}},
        }

    def models(self, config: TrainingConfig) -> list[Any]:
        """Return models that a training reads. Source: verl 0.9.1 _generated_ppo_trainer.yaml."""
        paths = super().models(config)
        if needs_critic(partial(value_at, config.values)):
            paths.append(config.get("critic_model"))
        if self.reward_function(config).by_model:
            paths.append(value_at(config.values, "reward.reward_model.model_path"))
        return paths


def rules_of(checks: Checks) -> PpoChecks | None:
    """Return the rules of a program, where raydebug has some."""
    return checks if isinstance(checks, PpoChecks) else None


def _read(main: MainConfig, said: Sequence[str], unknown: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return the config by our own reader."""
    folders = main.folders(folder)
    choices = choices_of(Overrides([*said]), folders)
    added = [one for one in said if one.startswith(("+", "~")) and one.lstrip("+~").partition("=")[0] in choices]
    if added:
        raise NotComposed(f"{added[0]} changes the list of defaults, which Hydra alone can do")
    whole = compose(main.name, folders, choices, folder)
    plain_config.with_overrides(whole, said, tuple(choices))
    for one in unknown:
        plain_config.with_overrides(whole, [f"++{key_of(one)}=???"])
    return plain_config.resolved(whole)


def without(values: Mapping[str, Any], overrides: Sequence[str]) -> Mapping[str, Any]:
    """Return values without those that these overrides set."""
    for one in overrides:
        above, _, last = str(key_of(one)).rpartition(".")
        node = value_at(values, above) if above else values
        if isinstance(node, dict):
            node.pop(last, None)
    return values


def _offloads(config: TrainingConfig, role: str, fsdp: Mapping[str, Any]) -> bool:
    return config.get(f"{role}_strategy") == "fsdp2" and bool(fsdp.get("offload_policy"))


def _sharded_bytes(parameters: int, fsdp: Mapping[str, Any], ranks: int, *, whole: bool) -> int:
    number = BYTES.get(str(fsdp.get("model_dtype") or "fp32"), 4)
    copies = 0 if fsdp.get("param_offload") else 1
    if whole:
        copies += 1 + (0 if fsdp.get("optimizer_offload") else 2)
    return parameters * number * copies // max(1, ranks)


def _values(config: Mapping[str, Any]) -> Iterator[Finding]:
    if value_at(config, "actor_rollout_ref.rollout.name", "") in (MISSING, None):
        yield finding("command.value-missing", overrides={"actor_rollout_ref.rollout.name": "vllm"})
    if value_at(config, "trainer.total_epochs", 1) in (0, None):
        yield finding("command.value.nothing", overrides={"trainer.total_epochs": "1"})
    for path in NUMBERS:
        value = value_at(config, path, MISSING)
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if value is MISSING or value == MISSING or is_number or (value is None and path in MAY_BE_NONE):
            continue
        yield finding("command.value.number", path=path, value=value)


def _rollout_ranks(config: TrainingConfig) -> int | None:
    """Return a recipe's GPUs for rollouts alone. Source: verl 0.7 experimental/one_step_off_policy/config."""
    return TrainingConfig(config.values, {"gpus_per_node": "rollout.n_gpus_per_node", "nodes": "rollout.nnodes"}).ranks


def _parallel(config: TrainingConfig) -> Iterator[Finding]:
    ranks, name = config.ranks, value_at(config.values, f"{_ROLLOUT}.name")
    tensor, key = config.whole("tensor_parallel"), config.keys["tensor_parallel"]
    pipeline = value_at(config.values, f"{_ROLLOUT}.pipeline_model_parallel_size")
    if isinstance(pipeline, int) and pipeline > 1 and name == "vllm":
        path = f"{_ROLLOUT}.pipeline_model_parallel_size"
        yield finding("command.parallel.pipeline", pipeline=pipeline, overrides={path: "1"})
    if ranks is None:
        return
    pool = _rollout_ranks(config) or ranks
    if tensor is not None and name != "hf" and (tensor < 1 or pool % tensor):
        fitting = max(n for n in range(1, max(pool, 1) + 1) if pool % n == 0 and n <= max(tensor, 1))
        yield finding("command.parallel.tensor", tensor=tensor, pool=pool, overrides={key: str(fitting)})
    sequence = config.whole("sequence_parallel") or 1
    if ranks % sequence:
        overrides = {config.keys["sequence_parallel"]: "1"}
        yield finding("command.parallel.sequence", sequence=sequence, ranks=ranks, overrides=overrides)
    if sequence > 1 and config.get("remove_padding") is False:
        yield finding("command.parallel.padding", overrides={config.keys["remove_padding"]: "True"})


def _gpus(config: TrainingConfig, gpus: int | None) -> Iterator[Finding]:
    wanted, each, nodes = config.ranks, config.get("gpus_per_node"), config.get("nodes")
    apart = _rollout_ranks(config)
    if gpus is None or wanted is None:
        return
    if apart and wanted + apart > gpus:
        yield finding("command.gpus.pools", wanted=wanted + apart, gpus=gpus, wanted_2=wanted, apart=apart)
    elif wanted > gpus:
        fewer = max(1, min(nodes, gpus))  # `gpus` is the sum over all nodes
        overrides = {"trainer.n_gpus_per_node": str(gpus // fewer), "trainer.nnodes": str(fewer)} if gpus else {}
        about: dict[str, Any] = {"wanted": wanted, "gpus": gpus, "each": each, "nodes": nodes}
        yield finding("command.gpus.one-pool" if gpus else "command.gpus.none", overrides=overrides, **about)


def _loggers(config: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[Finding]:
    logger = value_at(config, "trainer.logger") or []
    names = [logger] if isinstance(logger, str) else list(logger)
    if "wandb" in names and not variables.get("WANDB_API_KEY"):
        if variables.get("WANDB_MODE") in ("offline", "disabled", "dryrun"):
            return
        yield finding("command.logger", overrides={"trainer.logger": "[console]"})
