"""Rules about the config of main_ppo: overrides that Hydra refuses, missing values, numbers that do not fit. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raydebug.findings import Finding, error, warning
from raydebug.trainers.config import value_at
from raydebug.trainers.verl.batch_sizes import judge_batch
from raydebug.trainers.verl.cpu import wanted

Config = Mapping[str, Any]

MISSING = "???"
# Settings that must be whole numbers for these rules and for verl; None means "not set".
NUMBERS = (
    *("data.train_batch_size", "data.max_prompt_length", "data.max_response_length", "trainer.n_gpus_per_node"),
    *("trainer.nnodes", "actor_rollout_ref.rollout.n", "actor_rollout_ref.rollout.tensor_model_parallel_size"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"),
    *("actor_rollout_ref.rollout.max_num_seqs", "actor_rollout_ref.rollout.max_num_batched_tokens"),
)
MAY_BE_NONE = ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",)


def judge_config(config: Config, facts: Mapping[str, Any], gpus: int | None) -> list[Finding]:
    """Return what is wrong with a config.

    Args:
        config: as Hydra composes it.
        facts: `variables` of the training and `gpus` of the machine.
        gpus: the logical GPUs of the cluster; None without a cluster.
    """
    wrong = list(_values(config))
    if wrong:
        return wrong  # the other rules would report the same values again
    variables = facts["variables"]
    on_cpu = wanted(variables)
    if gpus is None and not on_cpu and config["trainer"]["nnodes"] == 1:
        gpus = facts["gpus"]  # of this machine, on which the cluster would start
    return [*judge_batch(config), *_parallel(config), *_gpus(config, gpus), *_loggers(config, variables)]


def judge_verdict(refusal: Mapping[str, Any]) -> Finding:
    """Return the finding for verl's own refusal of a config."""
    said = f"{refusal['type']}: {refusal['message'].strip().partition(chr(10))[0][:250]}"
    if refusal["part"] == "import verl":
        return error(
            "command.refused",
            "verl cannot be imported",
            why=f"{said} ({refusal['where']})",
            fix="install the flavour's lock again: a package that verl imports is missing or does not fit",
        )
    if refusal["part"] == "validate_config":
        why = f"validate_config, which the trainer calls first, raises it ({refusal['where']})"
    elif refusal["part"] == "actor_rollout_ref.rollout":
        why = f"it becomes a dataclass in each worker ({refusal['where']})"
    else:
        why = f"verl looks it up when its workers are up ({refusal['where']})"
    return error(
        "command.refused",
        f"verl refuses {'the config' if refusal['part'] == 'validate_config' else refusal['part']}: {said}",
        why=why,
        fix="change the setting that it names",
    )


def refused(refusal: Mapping[str, Any], overrides: Sequence[str]) -> Finding:
    """Return the finding for a command that Hydra cannot compose."""
    message: str = refusal["message"]
    keys: list[str] = refusal.get("keys") or []
    meant = re.search(r"Could not override '([^']+)'", message)
    if meant is None:
        return _unreadable(message, overrides)
    key = meant[1]
    said = next((o for o in overrides if o.lstrip("+").partition("=")[0] == key), key)
    value = said.partition("=")[2]
    elsewhere = [k for k in keys if k.rpartition(".")[2] == key.rpartition(".")[2]]
    close = difflib.get_close_matches(key, keys, n=1, cutoff=0.8) or elsewhere[:1]
    change: dict[str, str | None] = {key: None, close[0]: value} if close else {key: None, f"+{key}": value}
    return error(
        "command.override",
        f"the config has no setting {key}",
        why=f"Hydra refuses '{said}': " + message.strip().splitlines()[-3].strip()
        if message.count("\n") >= 3
        else f"Hydra refuses '{said}'",
        fix=f"{close[0]}={value}" + (f", if that is meant; +{said} adds a new one" if value else "")
        if close
        else f"+{said}, if a setting is to be added that verl's config does not have",
        overrides=change,
    )


def _unreadable(message: str, overrides: Sequence[str]) -> Finding:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    odd = next((o for o in overrides if o in message), "")
    if not odd:
        odd = next((o for o in overrides if any(c in o.partition("=")[2] for c in "[]{}()|$")), "")
    return error(
        "command.override",
        f"Hydra cannot read the override '{odd}'" if odd else "Hydra cannot compose the config of the command",
        why="; ".join(lines[:2])[:300],
        fix=f"quote the value for Hydra inside the shell's quotes: '{odd.partition('=')[0]}=\"...\"'"
        if odd
        else "check --config-name, --config-dir and the groups that the command names",
    )


def _values(config: Config) -> Iterator[Finding]:
    if value_at(config, "actor_rollout_ref.rollout.name") in (MISSING, None):
        yield error(
            "command.value-missing",
            "actor_rollout_ref.rollout.name is not given",
            why="it has no default since verl 0.6: MissingMandatoryValue, after the workers have started",
            fix="actor_rollout_ref.rollout.name=vllm",
            overrides={"actor_rollout_ref.rollout.name": "vllm"},
        )
    if value_at(config, "trainer.total_epochs", 1) in (0, None):
        yield error(
            "command.value",
            "trainer.total_epochs=0: there is nothing to do",
            why="the trainer ends well without a step (verl 0.9.1 trainer_base.py:467)",
            fix="trainer.total_epochs=1",
            overrides={"trainer.total_epochs": "1"},
        )
    for path in NUMBERS:
        value = value_at(config, path, MISSING)
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if value is MISSING or is_number or (value is None and path in MAY_BE_NONE):
            continue
        yield error(
            "command.value",
            f"{path}={value} is not a whole number",
            why="Hydra accepts any word; verl computes with it and raises TypeError or ValueError",
            fix=f"{path}=NUMBER (an empty shell variable gives an empty value)",
        )


def _parallel(config: Config) -> Iterator[Finding]:
    rollout = config["actor_rollout_ref"]["rollout"]
    ranks = config["trainer"]["n_gpus_per_node"] * config["trainer"]["nnodes"]
    tensor, pipeline = rollout["tensor_model_parallel_size"], rollout.get("pipeline_model_parallel_size") or 1
    key = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    if pipeline > 1 and rollout["name"] == "vllm":
        yield error(
            "command.parallel",
            f"pipeline_model_parallel_size={pipeline}: verl's rollout by vLLM has no pipeline parallelism",
            why="verl 0.9.1 workers/config/rollout.py raises NotImplementedError",
            fix="actor_rollout_ref.rollout.pipeline_model_parallel_size=1",
            overrides={"actor_rollout_ref.rollout.pipeline_model_parallel_size": "1"},
        )
    if tensor < 1 or ranks % tensor:
        fitting = max(n for n in range(1, max(ranks, 1) + 1) if ranks % n == 0 and n <= max(tensor, 1))
        yield error(
            "command.parallel",
            f"tensor_model_parallel_size={tensor} does not divide the {ranks} GPUs of the run",
            why="each engine takes that many GPUs of the pool (verl 0.9.1 workers/rollout/replica.py)",
            fix=f"{key}={fitting}",
            overrides={key: str(fitting)},
        )
    sequence = value_at(config, "actor_rollout_ref.actor.ulysses_sequence_parallel_size") or 1
    if ranks % sequence:
        path = "actor_rollout_ref.actor.ulysses_sequence_parallel_size"
        yield error(
            "command.parallel",
            f"ulysses_sequence_parallel_size={sequence} does not divide the {ranks} GPUs of the run",
            why="the ranks are laid out as data parallel by sequence parallel",
            fix=f"{path}=1",
            overrides={path: "1"},
        )
    if sequence > 1 and value_at(config, "actor_rollout_ref.model.use_remove_padding") is False:
        yield error(
            "command.parallel",
            "sequence parallelism needs use_remove_padding=True",
            why="verl 0.9.1 workers/config/actor.py asserts it",
            fix="actor_rollout_ref.model.use_remove_padding=True",
            overrides={"actor_rollout_ref.model.use_remove_padding": "True"},
        )


def _gpus(config: Config, gpus: int | None) -> Iterator[Finding]:
    wanted = config["trainer"]["n_gpus_per_node"] * config["trainer"]["nnodes"]
    if gpus is not None and wanted > gpus:
        yield error(
            "command.gpus",
            f"the command asks for {wanted} GPUs, {gpus} are there",
            why=f"trainer.n_gpus_per_node={config['trainer']['n_gpus_per_node']}, trainer.nnodes="
            f"{config['trainer']['nnodes']}: 'Total available GPUs {gpus} is less than total desired GPUs {wanted}'",
            fix=f"trainer.n_gpus_per_node={gpus} trainer.nnodes=1" if gpus else "`raydebug up --gpus N`",
            overrides={"trainer.n_gpus_per_node": str(gpus), "trainer.nnodes": "1"} if gpus else {},
        )


def _loggers(config: Config, variables: Mapping[str, str]) -> Iterator[Finding]:
    logger = value_at(config, "trainer.logger") or []
    names = [logger] if isinstance(logger, str) else list(logger)
    if "wandb" in names and not variables.get("WANDB_API_KEY"):
        if variables.get("WANDB_MODE") in ("offline", "disabled", "dryrun") or variables.get("NETRC_WANDB"):
            return
        yield warning(
            "command.logger",
            "trainer.logger has wandb, and there is no WANDB_API_KEY",
            why="a job has no terminal to ask for the key: wandb ends the trainer, unless ~/.netrc has it",
            fix="trainer.logger='[console]', or WANDB_MODE=offline in the environment of `raydebug up`",
            overrides={"trainer.logger": "[console]"},
        )
