"""What verl itself says of a config: its own validation and dataclasses, as its trainer and workers call them."""

from __future__ import annotations

import sys
from typing import Any

from raydebug.check.inside.__main__ import describe


def ask_verl(config: Any) -> dict[str, Any] | None:
    """Return the first refusal of verl; None where it takes the config.

    Source: verl 0.9.1 trainer/main_ppo.py main (validate_config), workers/rollout/replica.py (RolloutConfig),
    workers/config/model.py:149 (external_lib), trainer/ppo/core_algos.py (its registries), utils/dataset/rl_dataset.py.

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
    for part, ask in (
        ("actor_rollout_ref.rollout", lambda: omega_conf_to_dataclass(config.actor_rollout_ref.rollout)),
        ("actor_rollout_ref.model.external_lib", lambda: _import_own(config)),
        ("algorithm.adv_estimator", lambda: _find_estimator(config)),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", lambda: _find_loss(config)),
        ("data.custom_cls", lambda: _find_dataset(config)),
    ):
        try:
            ask()
        except Exception as failure:  # noqa: BLE001 - as above
            return {**describe(failure), "part": part}
    return None


def _import_own(config: Any) -> None:
    """Import the user's own modules: they may register what is asked for next."""
    from verl.utils.import_utils import import_external_libs

    sys.path.insert(0, "")
    import_external_libs(config.actor_rollout_ref.model.get("external_lib"))


def _find_estimator(config: Any) -> None:
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    get_adv_estimator_fn(config.algorithm.adv_estimator)


def _find_loss(config: Any) -> None:
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    get_policy_loss_fn(config.actor_rollout_ref.actor.policy_loss.get("loss_mode", "vanilla"))


def _find_dataset(config: Any) -> None:
    from verl.utils.dataset.rl_dataset import get_dataset_class

    get_dataset_class(config.data)
