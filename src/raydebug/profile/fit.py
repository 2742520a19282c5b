"""Make the numbers that a profile shrank divide each other as each trainer demands."""

from __future__ import annotations

from collections.abc import Callable

from raydebug.profile.settings import Settings

# Changed, one of these changes what the others have to divide.
_SHARED = ("train_batch_size", "mini_batch_size", "rollouts_per_prompt", "gpus_per_node", "nodes", "micro_batch_size")
UNCOUNTED_RANKS = 8  # where torchrun counts the GPUs itself: what is divisible by 8 is so by 1, 2 and 4


def fit(trainer: str, settings: Settings) -> None:
    """Adjust the shrunk numbers of one trainer's command."""
    _FITS[trainer](settings)
    _enough_samples(settings)


def ranks_of(settings: Settings) -> int:
    """Return how many processes train together."""
    if settings.started_ranks is not None:
        return settings.started_ranks
    said = settings.text("gpus_per_node")
    per_node = settings.whole("gpus_per_node") or (UNCOUNTED_RANKS if said else 1)
    return per_node * (settings.whole("nodes") or 1)


def _fit_ppo(settings: Settings) -> None:
    """Fit main_ppo.

    Source: verl 0.9.1 utils/config.py:validate_config (train batch * n by ranks), workers/engine_workers.py:262
    (mini batch by ranks), workers/config/actor.py:validate (mini batch not above train batch); 0.4.1
    workers/fsdp_workers.py:156-166 (mini batch * n / ranks by micro batch).
    """
    _at_most(settings, "tensor_parallel", ranks_of(settings), "no more ranks than there are")
    _fit_rollout_engine(settings)
    if not any(settings.is_changed(word) for word in _SHARED):
        return  # the user's own numbers fit each other, in ways that are not all known here
    ranks, rollouts = ranks_of(settings), settings.whole("rollouts_per_prompt") or 1
    batch = _whole_batches(settings, ranks)
    for part in ("", "critic_"):
        if not settings.has(f"{part}mini_batch_size"):
            continue
        own = settings.whole(f"{part}mini_batch_size") or batch
        # One that was larger is the batch itself: one update in each step.
        mini = batch if settings.is_changed(f"{part}mini_batch_size") else min(own, batch)
        mini = next((n for n in range(mini, 0, -1) if batch % n == 0 and n * rollouts % ranks == 0), batch)
        if mini != settings.whole(f"{part}mini_batch_size"):
            settings.change(f"{part}mini_batch_size", str(mini), f"divides the batch of {batch} and its {ranks} ranks")
        _divide(settings, f"{part}micro_batch_size", mini * rollouts // ranks)
    for word in ("rollout_log_prob_micro_batch_size", "ref_log_prob_micro_batch_size"):
        _divide(settings, word, batch * rollouts // ranks)


def _fit_sft(settings: Settings) -> None:
    """Fit the trainers for supervised fine-tuning.

    Source: verl 0.4.0 trainer/fsdp_sft_trainer.py:121-125 and 0.9.1 trainer/sft_trainer.py:240 (batch by ranks, a
    rank's share by micro batch).
    """
    ranks = max(1, ranks_of(settings) // (settings.whole("sequence_parallel") or 1))
    if any(settings.is_changed(word) for word in _SHARED):
        _divide(settings, "micro_batch_size", _whole_batches(settings, ranks) // ranks)


def _fit_generation(settings: Settings) -> None:
    _at_most(settings, "tensor_parallel", ranks_of(settings), "no more ranks than there are")
    _fit_rollout_engine(settings)


def _fit_rollout_engine(settings: Settings) -> None:
    """Give the engine room for one whole sequence, and no more.

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
    """Make the train batch a multiple of the ranks, and return it.

    Source: verl 0.4.1 protocol.py:chunk: before 0.5 prompts are dealt to the ranks as they are, n of each later.
    """
    batch = settings.whole("train_batch_size") or 1
    if batch % ranks:
        batch = -(-batch // ranks) * ranks
        settings.change("train_batch_size", str(batch), f"a multiple of the {ranks} ranks")
    return batch


def _enough_samples(settings: Settings) -> None:
    """Keep as many samples as a batch has: with fewer there is none, for the last one is dropped."""
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
    """Lower a number to the next that divides the whole."""
    number = settings.whole(word) if settings.has(word) else None
    if number and whole > 0 and whole % number:
        divisor = next(n for n in range(min(number, whole), 0, -1) if whole % n == 0)
        settings.change(word, str(divisor), f"divides a rank's share, {whole}")


_FITS: dict[str, Callable[[Settings], None]] = {
    "ppo": _fit_ppo,
    "sft": _fit_sft,
    "sft_ray": _fit_sft,
    "fsdp_sft": _fit_sft,
    "generation": _fit_generation,
    "generation_server": _fit_generation,
}
