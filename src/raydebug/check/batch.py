"""Batch sizes: what verl demands of train, mini and micro batches, rollouts and ranks. Pure arithmetic.

Source, verl 0.9.1: utils/config.py validate_config; workers/config/actor.py and critic.py; workers/engine_workers.py
:262 (train_mini_batch); workers/engine/utils.py:125 (prepare_micro_batches); trainer/ppo/v1/trainer_base.py:1588 (what
the v1 trainer pads a batch to) and :1482 (gen_batch_size); trainer/ppo/utils.py (need_critic, need_reference_policy).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from raydebug.check.finding import Finding, error, warning

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"


@dataclass(frozen=True)
class Sizes:
    """The numbers that have to fit.

    Args:
        train: prompts in a batch.
        rollouts: answers to each prompt.
        ranks: processes that train.
        parallel: ranks that work on the same sequences (ulysses); the others see other data.
    """

    train: int
    rollouts: int
    ranks: int
    parallel: int

    @property
    def shares(self) -> int:
        """Into how many parts a batch is split."""
        return max(1, self.ranks // max(1, self.parallel))

    def fitting_train(self) -> int:
        """Return the next larger train batch that the ranks divide."""
        step = self.ranks // math.gcd(self.ranks, self.rollouts)
        return -(-self.train // step) * step

    def fitting_mini(self, mini: int) -> int:
        """Return the largest mini batch up to this one that divides the train batch and is divided by the ranks."""
        fits = (n for n in range(min(mini, self.train), 0, -1) if self.train % n == 0)
        return next((n for n in fits if n * self.rollouts % self.shares == 0), self.train)


def judge_batch(config: Mapping[str, Any]) -> Iterator[Finding]:
    """Return what does not divide.

    Args:
        config: of a command whose numbers are numbers.
    """
    actor, rollout = config["actor_rollout_ref"]["actor"], config["actor_rollout_ref"]["rollout"]
    sizes = Sizes(
        train=config["data"]["train_batch_size"],
        rollouts=rollout["n"],
        ranks=config["trainer"]["n_gpus_per_node"] * config["trainer"]["nnodes"],
        parallel=actor.get("ulysses_sequence_parallel_size") or 1,
    )
    if min(sizes.train, sizes.rollouts, sizes.ranks) < 1:
        yield error(
            "command.batch",
            f"train_batch_size={sizes.train}, rollout.n={sizes.rollouts}, {sizes.ranks} GPUs: each must be 1 or more",
            why="there is nothing to train on",
            fix="data.train_batch_size=8 actor_rollout_ref.rollout.n=1 trainer.n_gpus_per_node=1 trainer.nnodes=1",
        )
        return
    yield from _train(sizes, config)
    sizes = replace(sizes, train=sizes.fitting_train())  # from here on as if each fix were applied
    is_v1 = bool(config["trainer"].get("use_v1", False))
    parts = [(ACTOR, actor)] + ([("critic", config["critic"])] if _uses_critic(config) else [])
    multiple = sizes.shares
    for path, part in parts:
        yield from _mini(sizes, path, part, is_v1=is_v1)
        mini = part.get("ppo_mini_batch_size")
        if isinstance(mini, int) and mini > 0:
            is_taken = mini <= sizes.train and mini * sizes.rollouts % sizes.shares == 0
            multiple = math.lcm(multiple, (mini if is_taken else sizes.fitting_mini(mini)) * sizes.rollouts)
    padded = sizes.train * sizes.rollouts
    padded = -(-padded // multiple) * multiple if is_v1 else padded
    needs_ref = bool(actor.get("use_kl_loss")) or bool(config.get("algorithm", {}).get("use_kl_in_reward"))
    others = [(ROLLOUT, rollout)] + ([(REF, config["actor_rollout_ref"]["ref"])] if needs_ref else [])
    for path, part in others:
        if not part.get("log_prob_use_dynamic_bsz"):
            yield from _micro(f"{path}.log_prob_micro_batch_size", part, "log_prob_micro_batch_size", padded, sizes)


def _uses_critic(config: Mapping[str, Any]) -> bool:
    asked = config.get("critic", {}).get("enable")
    return bool(asked) if asked is not None else config["algorithm"]["adv_estimator"] == "gae"


def _train(sizes: Sizes, config: Mapping[str, Any]) -> Iterator[Finding]:
    if sizes.train * sizes.rollouts % sizes.ranks:
        fitting = sizes.fitting_train()
        yield error(
            "command.batch",
            f"{sizes.train} prompts x {sizes.rollouts} rollouts cannot be spread over {sizes.ranks} ranks",
            why=f"verl asserts that real_train_batch_size is divisible by {sizes.ranks}",
            fix=f"data.train_batch_size={fitting}",
            overrides={"data.train_batch_size": str(fitting)},
        )
    fetched = config["data"].get("gen_batch_size")
    if isinstance(fetched, int) and fetched > 0 and sizes.train % fetched:
        yield error(
            "command.batch",
            f"data.gen_batch_size={fetched} does not divide data.train_batch_size={sizes.train}",
            why="the trainer fetches whole pieces: 'num_prompts must be a positive multiple of gen_batch_size'",
            fix="data.gen_batch_size=null",
            overrides={"data.gen_batch_size": "null"},
        )


def _mini(sizes: Sizes, path: str, part: Mapping[str, Any], *, is_v1: bool) -> Iterator[Finding]:
    if part.get("use_dynamic_bsz"):
        return
    mini, key = part.get("ppo_mini_batch_size"), f"{path}.ppo_mini_batch_size"
    if not isinstance(mini, int) or mini < 1:
        return
    fitting = sizes.fitting_mini(mini)
    if mini > sizes.train:
        yield error(
            "command.batch",
            f"{key}={mini} is larger than data.train_batch_size={sizes.train}",
            why="verl refuses it: a mini batch is a part of the train batch",
            fix=f"{key}={fitting}",
            overrides={key: str(fitting)},
        )
    elif mini * sizes.rollouts % sizes.shares:
        yield error(
            "command.batch",
            f"a mini batch of {mini} x {sizes.rollouts} rollouts cannot be spread over {sizes.shares} ranks",
            why="each rank asserts it at its first update, after the first rollouts",
            fix=f"{key}={fitting}",
            overrides={key: str(fitting)},
        )
    elif sizes.train % mini:
        yield (warning if is_v1 else error)(
            "command.batch",
            f"{key}={mini} does not divide data.train_batch_size={sizes.train}",
            why="the v1 trainer fills the batch up with made-up samples" if is_v1 else "the last mini batch is short",
            fix=f"{key}={fitting}",
            overrides={key: str(fitting)},
        )
        fitting = mini if is_v1 else fitting
    else:
        fitting = mini
    yield from _micro(f"{path}.ppo_micro_batch_size", part, "ppo_micro_batch_size", fitting * sizes.rollouts, sizes)


def _micro(path: str, part: Mapping[str, Any], name: str, whole: int, sizes: Sizes) -> Iterator[Finding]:
    """Judge one micro batch size: of all ranks (older) or per GPU, against what one rank gets of the whole."""
    older, micro = part.get(name), part.get(f"{name}_per_gpu")
    key, share = f"{path}_per_gpu", whole // sizes.shares
    if older is None and micro is None:
        fitting = _divisor(share, 8)
        yield error(
            "command.batch",
            f"neither {key} nor {path} is given",
            why="verl demands one of them unless use_dynamic_bsz=True",
            fix=f"{key}={fitting}",
            overrides={key: str(fitting)},
        )
    elif older is not None and micro is not None and older != micro:
        yield error(
            "command.batch",
            f"both {path} and {key} are given",
            why="verl refuses the older one beside the newer one",
            fix=f"take {path} out",
            overrides={path: None},
        )
    elif isinstance(micro, int) and micro > 0 and share % micro:
        fitting = _divisor(share, micro)
        yield error(
            "command.batch",
            f"{key}={micro} does not divide the {share} sequences that each rank gets",
            why="verl asserts 'data size must be divisible by force_group_size * micro_batch_size_per_gpu'",
            fix=f"{key}={fitting}",
            overrides={key: str(fitting)},
        )


def _divisor(whole: int, at_most: int) -> int:
    """Return the largest divisor of a number up to a limit."""
    return next((n for n in range(min(whole, at_most), 0, -1) if whole % n == 0), 1)
