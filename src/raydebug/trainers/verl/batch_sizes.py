"""Batch sizes: what verl requires of train, mini and micro batches, rollouts and ranks. Pure arithmetic.

`judge_batch` reports the numbers of a config that do not divide; `fit_batches` makes those divide that a profile
reduced.

Source, verl 0.9.1: utils/config.py validate_config; workers/config/actor.py and critic.py; workers/engine_workers.py
:262 (train_mini_batch); workers/engine/utils.py:125 (prepare_micro_batches); trainer/ppo/v1/trainer_base.py:1588 (what
the v1 trainer pads a batch to) and :1482 (gen_batch_size); trainer/ppo/utils.py (need_critic, need_reference_policy).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from raydebug.findings import Finding, finding
from raydebug.trainers.config import value_at
from raydebug.trainers.settings import Settings
from raydebug.trainers.verl.keys import needs_critic

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
MICRO = "ppo_micro_batch_size"
_MEGATRON = ("tensor_model", "pipeline_model", "context")


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
    """Return what does not divide, as far as the config has the numbers."""
    sizes = _sizes_of(config)
    if sizes is None:
        return
    if min(sizes.train, sizes.rollouts, sizes.ranks) < 1:
        yield finding("command.batch.least", sizes=sizes)
        return
    trainer, rollout = config["trainer"], value_at(config, ROLLOUT)
    yield from _train(sizes, config)
    sizes = replace(sizes, train=sizes.fitting_train())  # from here on as if each fix were applied
    is_v1 = bool(trainer.get("use_v1", False))
    has_critic = isinstance(config.get("critic"), Mapping) and needs_critic(partial(value_at, config))
    parts = [(path, value_at(config, path)) for path in (ACTOR, *(["critic"] if has_critic else []))]
    multiple = sizes.shares
    for path, part in parts:
        if f"{MICRO}_per_gpu" not in part:
            return  # a fork of before verl 0.2, whose sizes are those of all ranks and divide otherwise
        yield from _mini(sizes, path, part, is_v1=is_v1, is_later="use_v1" in trainer)
        mini = part.get("ppo_mini_batch_size")
        if isinstance(mini, int) and mini > 0:
            is_taken = mini <= sizes.train and mini * sizes.rollouts % sizes.shares == 0
            multiple = math.lcm(multiple, (mini if is_taken else sizes.fitting_mini(mini)) * sizes.rollouts)
    padded = sizes.train * sizes.rollouts
    padded = -(-padded // multiple) * multiple if is_v1 else padded
    needs_ref = value_at(config, f"{ACTOR}.use_kl_loss") or value_at(config, "algorithm.use_kl_in_reward")
    others = [(ROLLOUT, rollout)] + ([(REF, value_at(config, REF))] if needs_ref else [])
    for path, part in others:
        if isinstance(part, Mapping) and not part.get("log_prob_use_dynamic_bsz"):
            # Before 0.9 the last micro batch of log probabilities may be short: verl 0.4.1 workers/actor/dp_actor.py.
            whole = padded if "use_v1" in trainer else 0
            yield from _micro(f"{path}.log_prob_micro_batch_size", part, "log_prob_micro_batch_size", whole, sizes)


def _sizes_of(config: Mapping[str, Any]) -> Sizes | None:
    """Return the numbers; None where one is not known, or the program uses them in another way."""
    actor = value_at(config, ACTOR)
    paths = ("data.train_batch_size", f"{ROLLOUT}.n", "trainer.n_gpus_per_node", "trainer.nnodes")
    train, rollouts, each, nodes = (value_at(config, path) for path in paths)
    if not isinstance(actor, Mapping) or not all(isinstance(it, int) for it in (train, rollouts, each, nodes)):
        return None
    # Prompts come one by one. Source: verl 0.7 experimental/fully_async_policy/config.
    if "async_training" in config or value_at(config, "rollout.total_rollout_steps") is not None:
        return None
    ranks, parallel = each * nodes, actor.get("ulysses_sequence_parallel_size") or 1
    if actor.get("strategy") == "megatron":
        # Source: verl 0.9.1 utils/config.py validate_config.
        splits = [value_at(actor, f"megatron.{kind}_parallel_size") or 1 for kind in _MEGATRON]
        if not all(isinstance(it, int) for it in splits) or ranks % math.prod(splits):
            return None
        ranks, parallel = ranks // math.prod(splits), 1
    return Sizes(train, rollouts, ranks, parallel) if isinstance(parallel, int) else None


def _train(sizes: Sizes, config: Mapping[str, Any]) -> Iterator[Finding]:
    # With dynamic sizes validate_config asserts nothing, and the v1 trainer pads the batch.
    is_padded = config["trainer"].get("use_v1") and value_at(config, f"{ACTOR}.use_dynamic_bsz")
    if sizes.train * sizes.rollouts % sizes.ranks and not is_padded:
        fitting = sizes.fitting_train()
        yield finding("command.batch.ranks", sizes=sizes, overrides={"data.train_batch_size": str(fitting)})
    fetched = config["data"].get("gen_batch_size")
    is_v1 = config["trainer"].get("use_v1")  # in DAPO's own trainer it is larger than the batch that it keeps of it
    if is_v1 and isinstance(fetched, int) and fetched > 0 and sizes.train % fetched:
        yield finding("command.batch.pieces", fetched=fetched, sizes=sizes, overrides={"data.gen_batch_size": "null"})


def _mini(sizes: Sizes, path: str, part: Mapping[str, Any], *, is_v1: bool, is_later: bool) -> Iterator[Finding]:
    is_dynamic = part.get("use_dynamic_bsz")
    if is_dynamic and not is_later:  # each rank may round its share: verl 0.7 workers/fsdp_workers.py
        return
    mini, key = part.get("ppo_mini_batch_size"), f"{path}.ppo_mini_batch_size"
    if not isinstance(mini, int) or mini < 1:
        return
    fitting = sizes.fitting_mini(mini)
    if mini > sizes.train and not is_dynamic:
        yield finding("command.batch.mini-large", key=key, mini=mini, sizes=sizes, overrides={key: str(fitting)})
    elif mini * sizes.rollouts % sizes.shares:
        yield finding("command.batch.mini-ranks", mini=mini, sizes=sizes, overrides={key: str(fitting)})
    elif sizes.train % mini and not is_dynamic:
        case = "filled" if is_v1 else "short" if is_later else "short-once"
        yield finding(f"command.batch.mini-{case}", key=key, mini=mini, sizes=sizes, overrides={key: str(fitting)})
        fitting = mini if is_v1 else fitting
    else:
        fitting = mini
    if not is_dynamic:
        yield from _micro(f"{path}.ppo_micro_batch_size", part, "ppo_micro_batch_size", fitting * sizes.rollouts, sizes)


def _micro(path: str, part: Mapping[str, Any], name: str, whole: int, sizes: Sizes) -> Iterator[Finding]:
    """Judge one micro batch size: of all ranks (older) or per GPU, against what one rank gets of the whole."""
    if not {name, f"{name}_per_gpu"} & part.keys():
        return
    older, micro = part.get(name), part.get(f"{name}_per_gpu")
    key, share = f"{path}_per_gpu", whole // sizes.shares
    if older is None and micro is None:
        fitting = largest_divisor(share or 8, 8)
        yield finding("command.batch.micro-none", key=key, path=path, overrides={key: str(fitting)})
    elif older is not None and micro is not None and older != micro:
        yield finding("command.batch.micro-both", path=path, key=key, overrides={path: None})
    elif isinstance(micro, int) and micro > 0 and share % micro:
        fitting = largest_divisor(share, micro)
        yield finding("command.batch.micro", key=key, micro=micro, share=share, overrides={key: str(fitting)})


def largest_divisor(whole: int, at_most: int) -> int:
    """Return the largest divisor of a number up to a limit."""
    return next((n for n in range(min(whole, at_most), 0, -1) if whole % n == 0), 1)


# A change of one of these changes what the others have to divide.
_SHARED = ("train_batch_size", "mini_batch_size", "rollouts_per_prompt", "gpus_per_node", "nodes", "micro_batch_size")
UNCOUNTED_RANKS = 8  # if torchrun counts the GPUs itself: a multiple of 8 is one of 1, 2 and 4 too


def fit_batches(program: str, settings: Settings) -> None:
    """Adjust the reduced numbers of one command."""
    if "sft" in program:
        _fit_sft(settings)
    else:
        _at_most(settings, "tensor_parallel", ranks_of(settings), "no more ranks than there are")
        _fit_rollout_engine(settings)
        if not program.startswith("generation"):
            _fit_ppo(settings)
    _enough_samples(settings)


def ranks_of(settings: Settings) -> int:
    """Return the number of processes that train together."""
    if settings.started_ranks is not None:
        return settings.started_ranks
    said = settings.text("gpus_per_node")
    per_node = settings.whole("gpus_per_node") or (UNCOUNTED_RANKS if said else 1)
    return per_node * (settings.whole("nodes") or 1)


def _ranks(settings: Settings) -> str:
    """Return `ranks`, with a word where their number is a guess: only a run can tell it."""
    said = settings.started_ranks is None and settings.text("gpus_per_node")
    return "ranks (a guess)" if said and settings.whole("gpus_per_node") is None else "ranks"


def _fit_ppo(settings: Settings) -> None:
    """Fit main_ppo.

    Source: verl 0.9.1 utils/config.py:validate_config (train batch * n by ranks), workers/engine_workers.py:262
    (mini batch by ranks), workers/config/actor.py:validate (mini batch not above train batch); 0.4.1
    workers/fsdp_workers.py:156-166 (mini batch * n / ranks by micro batch).
    """
    if not any(settings.is_changed(word) for word in _SHARED):
        return  # the user's own numbers fit each other already
    ranks, rollouts = ranks_of(settings), settings.whole("rollouts_per_prompt") or 1
    is_async = settings.has("async_samples")  # its train batch is 0: prompts come one by one
    batch = (
        _next_multiple(settings.whole("mini_batch_size") or 1, ranks) if is_async else _whole_batches(settings, ranks)
    )
    for part in ("", "critic_"):
        if not settings.has(f"{part}mini_batch_size"):
            continue
        own = settings.whole(f"{part}mini_batch_size") or batch
        # One that was larger is the batch itself: one update in each step.
        mini = batch if settings.is_changed(f"{part}mini_batch_size") else min(own, batch)
        older = settings.has(f"{part}micro_batch_size") and _is_of_all_ranks(settings, f"{part}micro_batch_size")
        # Source: Search-R1 598e61bd verl/workers/fsdp_workers.py divides it by the ranks, and by no rollouts.
        fitting = Sizes(train=batch, rollouts=1 if older else rollouts, ranks=ranks, parallel=1)
        mini = fitting.fitting_mini(mini)
        if mini != settings.whole(f"{part}mini_batch_size"):
            settings.change(
                f"{part}mini_batch_size", str(mini), f"divides the batch of {batch} and its {ranks} {_ranks(settings)}"
            )
        _fit_micro(settings, f"{part}micro_batch_size", mini * rollouts // ranks, ranks)
        if is_async and not part:
            # Source: verl 0.7 experimental/fully_async_policy/fully_async_trainer.py (required_samples).
            samples = 2 * mini * (settings.whole("async_batches") or 1)
            settings.change("async_samples", str(samples), f"two updates of {mini} prompts each")
    for word in ("rollout_log_prob_micro_batch_size", "ref_log_prob_micro_batch_size"):
        _fit_micro(settings, word, batch * rollouts // ranks, ranks)


def _is_of_all_ranks(settings: Settings, word: str) -> bool:
    """Return whether a micro batch is that of all ranks together, as before verl 0.2, and not of each GPU."""
    return settings.path(word).endswith("micro_batch_size")


def _fit_micro(settings: Settings, word: str, share: int, ranks: int) -> None:
    """Lower a micro batch to one that divides a rank's share; one of all ranks to a sequence for each."""
    if not settings.has(word) or not _is_of_all_ranks(settings, word):
        _divide(settings, word, share)
    elif settings.text(word) is not None:
        settings.change(word, str(ranks), f"one sequence for each of the {ranks} {_ranks(settings)}")


def _fit_sft(settings: Settings) -> None:
    """Fit the trainers for supervised fine-tuning.

    Source: verl 0.4.0 trainer/fsdp_sft_trainer.py:121-125 and 0.9.1 trainer/sft_trainer.py:240 (batch by ranks, a
    rank's share by micro batch).
    """
    ranks = max(1, ranks_of(settings) // (settings.whole("sequence_parallel") or 1))
    if any(settings.is_changed(word) for word in _SHARED):
        _divide(settings, "micro_batch_size", _whole_batches(settings, ranks) // ranks)


def _fit_rollout_engine(settings: Settings) -> None:
    """Give the engine room for one whole sequence and not more.

    Source: verl 0.4.1 workers/rollout/vllm_rollout/vllm_rollout_spmd.py:126-128: a batch of tokens smaller than the
    longest sequence is an error.
    """
    prompt, response = settings.whole("prompt_tokens"), settings.whole("response_tokens")
    if not prompt or not response or not settings.is_limited("response_tokens"):
        return
    _at_most(settings, "rollout_model_tokens", prompt + response, "the longest prompt and the longest response")
    longest = settings.whole("rollout_model_tokens") or prompt + response
    batched = settings.whole("rollout_batched_tokens")
    if batched is not None and batched < longest:
        settings.change("rollout_batched_tokens", str(longest), "room for one whole sequence")


def _whole_batches(settings: Settings, ranks: int) -> int:
    """Make the train batch a multiple of the ranks and return it.

    Source: verl 0.4.1 protocol.py:chunk: before 0.5 prompts are distributed over the ranks before they are repeated n
    times.
    """
    batch = settings.whole("train_batch_size") or 1
    if batch % ranks:
        batch = _next_multiple(batch, ranks)
        settings.change("train_batch_size", str(batch), f"a multiple of the {ranks} {_ranks(settings)}")
    return batch


def _next_multiple(number: int, of: int) -> int:
    return -(-number // of) * of


def _enough_samples(settings: Settings) -> None:
    """Keep at least one batch of samples: an incomplete batch is dropped."""
    batch = settings.whole("train_batch_size") or 1
    samples = settings.whole("train_samples") if settings.is_limited("train_samples") else None
    if samples is not None and 0 <= samples < batch:
        settings.change("train_samples", str(batch), "one batch")


def _at_most(settings: Settings, word: str, limit: int, why: str) -> None:
    if not settings.has(word):
        return
    number = settings.whole(word)
    if number is None or number > limit:
        settings.change(word, str(limit), why)


def _divide(settings: Settings, word: str, whole: int) -> None:
    """Lower a number to the next one that divides the whole."""
    number = settings.whole(word) if settings.has(word) else None
    if number and whole > 0 and whole % number:
        divisor = largest_divisor(whole, number)
        settings.change(word, str(divisor), f"divides a rank's share, {whole}")
