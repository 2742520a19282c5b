"""Settings that a CPU cannot do, for a command that runs with VERL_PLATFORM=cpu. Pure.

Which ones, and why, is what the profile `debug` says under `cpu`: it is written once, there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raydebug.check.finding import Finding, error
from raydebug.profile.keys import column_of
from raydebug.profile.load import load_profile

# The words of the profile's `cpu` part without which a training fails; its others only make it smaller.
NEEDED = ("device", "actor_strategy", "critic_strategy", "attention", "remove_padding", "critic_remove_padding",
          "fused_kernels", "free_cache", "sleep_mode")  # fmt: skip


def judge(config: Mapping[str, Any]) -> Iterator[Finding]:
    """Return the settings that have to be others on a CPU, as one finding."""
    changes: dict[str, str | None] = {}
    reasons = []
    found = column_of("ppo", "0.9")
    column = found[1] if found else {}
    for rule in load_profile("debug").rules:
        if rule.word not in column:
            continue
        key = column[rule.word]
        if rule.only_on != "cpu" or rule.kind != "set" or rule.word not in NEEDED:
            continue
        if key.only_with == "critic" and not _uses_critic(config):
            continue
        if _value_at(config, key.path) != rule.value:
            changes[f"{'++' if key.added else ''}{key.path}"] = str(rule.value)
            reasons.append(f"{key.path.rpartition('.')[2]}: {rule.why}")
    if changes:
        yield error(
            "command.cpu",
            f"{len(changes)} settings of the command cannot work on a CPU (VERL_PLATFORM=cpu)",
            why="; ".join(reasons),
            fix=" ".join(f"{key}={value}" for key, value in changes.items()) + " (or --profile debug, which sets them)",
            overrides=changes,
        )


def _value_at(config: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(config, Mapping) or part not in config:
            return None
        config = config[part]
    return config


def _uses_critic(config: Mapping[str, Any]) -> bool:
    asked = config.get("critic", {}).get("enable")
    return bool(asked) if asked is not None else config["algorithm"]["adv_estimator"] == "gae"
