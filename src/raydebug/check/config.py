"""The rules about a command's config, and the GPUs that it asks for.

`judge` calls the rules of the trainer, and adds the settings that a CPU needs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydebug.check.probes import Facts
from raydebug.check.target import NoAnswer, Target, only_training, run_probe, target_of
from raydebug.errors import RaydebugError
from raydebug.findings import Finding, finding
from raydebug.profile.load import load_profile
from raydebug.settings.flavours import install, numbers
from raydebug.trainers.config import TrainingConfig, value_at
from raydebug.trainers.registry import TRAINERS, column_of, newest_column
from raydebug.trainers.trainer import Program

if TYPE_CHECKING:
    from raydebug.cluster.state import Cluster
    from raydebug.commands.trainings import Reading
    from raydebug.trainers.verl.checks import PpoChecks

# The words of the `cpu` part of the profile `debug` without which a training fails on a CPU; the others only make it
# smaller. Values and reasons are in the profile.
NEEDED_ON_CPU = (
    *("device", "actor_strategy", "critic_strategy", "attention", "remove_padding", "critic_remove_padding"),
    *("sequence_parallel", "critic_sequence_parallel", "fused_kernels", "free_cache", "sleep_mode"),
)
PLAN_BUDGET_S = 10.0
HOW = "`raydebug check train -- COMMAND` starts the whole training, small"
CPU_SINCE = (0, 9)  # of verl


def judge(target: Target, facts: Mapping[str, Any]) -> list[Finding]:
    """Return what is wrong with a command's config.

    Args:
        target: whose command it is.
        facts: `config`, `variables` of the training, `gpus` of the machine, and `verdict` of the trainer itself.
    """
    config, rules = target.config(facts["config"]), target.rules
    copies = list(judge_copies(target))
    if rules is None:
        return copies
    facts = {**facts, "is_release": is_release(target, facts)}
    if target.elsewhere:
        found = rules.judge(config, {**facts, "gpus": sys.maxsize}, None)
    else:
        found = rules.judge(config, facts, target.gpus)
    found = [*copies, *found]
    if lacks_values(found):
        return found
    gpus_only = trains_on_gpus_only(target.program, facts["trainer_version"])
    if is_on_cpu(facts["variables"]) and not gpus_only and not target.elsewhere:
        found += _on_cpu(target, config)
    found += not_run(facts)
    if "full" in facts:
        found += _at_full_size(rules, target.config(facts["full"]), facts)
    if facts["verdict"] is not None and not any(finding.severity == "error" for finding in found):
        found.append(rules.judge_verdict(facts["verdict"]))
    return found


def judge_copies(target: Target) -> Iterator[Finding]:
    """Return whether a launcher starts a trainer several times that starts its workers itself."""
    if target.copies is not None:
        assert target.program is not None
        launcher, count = target.copies
        case = "counted" if count else "each-gpu"
        yield finding(f"command.copies.{case}", program=target.program, launcher=launcher, count=count)


def _at_full_size(rules: PpoChecks, config: TrainingConfig, facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Return what does not fit in the command without its profile, as notes: the run that is checked is the small one.

    The GPUs of the full size may be elsewhere.
    """
    for found in rules.judge(config, {**facts, "gpus": sys.maxsize}, None):
        if found.severity == "error" and found.code in ("command.batch", "command.parallel", "command.value"):
            what = f"at full size, without the profile: {found.what}"
            yield Finding(found.code, "note", what, found.why, found.fix)


def is_release(target: Target, facts: Mapping[str, Any]) -> bool:
    """Return whether a command's trainer is a release that raydebug knows: a fork may use its data in other ways."""
    return target.program is not None and column_of(target.program.name, facts["trainer_version"]) is not None


def not_run(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Return what was not looked at, and why: notes, as nothing is wrong with the command."""
    if unread := facts.get("unread"):
        is_verl = facts.get("trainer", "verl") == "verl"
        case = "config-of-verl" if is_verl else "config"
        yield finding(f"check.not-run.{case}", program=facts["program"], reason=str(unread), install=install("verl"))
    for package, parts in sorted((facts.get("lacking") or {}).items()):
        parts = list(dict.fromkeys(parts))
        yield finding("check.not-run.package", package=package, parts=parts, install=install(package))
    if unknown := facts.get("unknown"):
        are = "s are" if len(unknown) > 1 else " is"
        yield finding("check.not-run.values", count=len(unknown), are=are, unknown=unknown)


def spelled(target: Target, facts: Facts, word: str) -> str:
    """Return the key that a command has for a setting, as its arguments spell it."""
    key = target.config(facts["config"]).keys.get(word)
    return f"{target.checks.sign}{key}" if key else f"the key for {word.replace('_', ' ')}"


def without_rules(target: Target, parts: str) -> Finding:
    """Return the note that a part of the check is not there for the program of a command."""
    assert target.program is not None
    return finding("check.not-run.program", parts=parts, target=target, how=HOW)


def lacks_values(found: Sequence[Finding]) -> bool:
    """Return whether values are missing, or of another type, that other rules compute with."""
    return any(finding.code.startswith("command.value") for finding in found)


def refused(target: Target, facts: Mapping[str, Any]) -> list[Finding]:
    """Return the finding for a command whose config cannot be composed; empty if it was."""
    if "config_error" not in facts:
        return []
    refusal, rules = facts["config_error"], target.rules
    if rules is not None:
        return [rules.refused(refusal, target.arguments)]
    return [finding("command.override.elsewhere", refusal=refusal)]


def is_on_cpu(variables: Mapping[str, str]) -> bool:
    """Return whether a training with these variables runs on the CPU."""
    return any(trainer.on_cpu(variables) for trainer in TRAINERS)


def trains_on_gpus_only(program: Program | None, version: str) -> bool:
    """Return whether a program has no way to train on a CPU: verl's platforms came with 0.9, forks are older.

    Source: verl 0.9.1 plugin/platform.
    """
    if program is not None and not program.trainer.on_cpu({"VERL_PLATFORM": "cpu"}):
        return True
    return bool(version) and numbers(version) < CPU_SINCE


def _on_cpu(target: Target, config: TrainingConfig) -> Iterator[Finding]:
    """Return the settings that have to differ on a CPU, as one finding."""
    assert target.program is not None
    trainer, column = target.program.trainer, newest_column(target.program.name)
    changes: dict[str, str | None] = {}
    reasons = []
    for rule in load_profile("debug").rules:
        key = column.get(rule.word)
        if key is None or rule.only_on != "cpu" or rule.kind != "set" or rule.word not in NEEDED_ON_CPU:
            continue
        if not key.added and value_at(config.values, config.keys[rule.word], key) is key:
            continue  # an older config has no such key
        if key.only_with is not None and not trainer.in_use(key.only_with, partial(value_at, config.values)):
            continue
        if config.get(rule.word) != rule.value:
            path = config.keys[rule.word]
            changes[f"{'++' if key.added else ''}{path}"] = str(rule.value)
            reasons.append(f"{path.rpartition('.')[2]}: {rule.why}")
    if changes:
        yield finding("command.cpu", count=len(changes), reasons="; ".join(reasons), overrides=changes)


@dataclass(frozen=True)
class Need:
    """The demand of a training command.

    Args:
        gpus: logical GPUs over all nodes, with the profile applied.
        on_cpu: whether it trains on the CPU (VERL_PLATFORM=cpu), where a logical GPU is a number and no device.
        keys: the trainer's own, for the GPUs of a node and the number of nodes.
    """

    gpus: int
    on_cpu: bool
    keys: tuple[str, str]


def find_need(reading: Reading, folder: Path, cluster: Cluster | None, profile: str | None) -> Need | None:
    """Return the demand of a command under a profile; None if it is no known training or its config is unreadable."""
    try:
        target = target_of(only_training(reading), folder, cluster, profile)
        facts = plan(target, profile, with_files=False) if target.rules else {}
    except (RaydebugError, NoAnswer):
        return None  # the run itself says what is wrong
    if "gpus" not in facts:
        return None
    keys = target.checks.keys
    return Need(int(facts["gpus"]), is_on_cpu(target.environ or {}), (keys["gpus_per_node"], keys["nodes"]))


def plan(target: Target, profile: str | None, *, with_files: bool) -> Facts:
    """Return `gpus` and, with_files, `read` of a command, or Hydra's `config_error` (check/probes/plan.py)."""
    request = {**target.as_request(), "profile": profile, "with_files": with_files}
    return run_probe(target, "plan", budget_s=PLAN_BUDGET_S, **request)
