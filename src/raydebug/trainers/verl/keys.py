"""Which parts a training of verl has; `keys.toml` has the keys of its programs, release by release."""

from __future__ import annotations

from pathlib import Path

from raydebug.trainers.keys import ValueOf

KEYS_FILE = Path(__file__).with_name("keys.toml")


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
    if part == "critic":
        return needs_critic(value_of)
    if part == "large images":
        from raydebug.trainers.verl.vision import takes_large_images

        return takes_large_images(str(value_of("actor_rollout_ref.model.path")))
    assert part == "whole weights", part
    # Source: verl 0.4.1 to 0.9.1 config: lora_rank 0 means no LoRA; 0.8 and later have model.lora.rank too.
    ranks = (value_of(f"actor_rollout_ref.model.{key}") for key in ("lora_rank", "lora.rank"))
    return all(rank in (None, 0, "0") for rank in ranks)
