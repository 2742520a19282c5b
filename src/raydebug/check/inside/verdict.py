"""What verl itself says of a config: its own validation and dataclasses, as its trainer and workers call them."""

from __future__ import annotations

from typing import Any

from raydebug.check.inside.__main__ import describe


def ask_verl(config: Any) -> dict[str, Any] | None:
    """Return the first refusal of verl; None where it takes the config.

    Source: verl 0.9.1 trainer/main_ppo.py main (validate_config), workers/rollout/replica.py (RolloutConfig).

    Args:
        config: as Hydra composes it, not resolved.
    """
    try:
        from verl.trainer.ppo.utils import need_critic, need_reference_policy
        from verl.utils.config import omega_conf_to_dataclass, validate_config
    except ImportError as failure:
        return {**describe(failure), "part": "import verl"}
    try:
        validate_config(
            config=config,
            use_reference_policy=need_reference_policy(config),
            use_critic=need_critic(config),
        )
    except Exception as failure:  # noqa: BLE001 - assertions, ValueError, Hydra's own errors
        return {**describe(failure), "part": "validate_config"}
    try:
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    except Exception as failure:  # noqa: BLE001 - as above
        return {**describe(failure), "part": "actor_rollout_ref.rollout"}
    return None
