"""The tokenizer of a tiny model: trained here on arithmetic sentences, every byte in its alphabet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VOCABULARY = 512
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def sentences() -> Iterator[str]:
    """Yield what the tokenizer is trained on: the words of the tiny dataset."""
    for i in range(40):
        for j in range(40):
            yield f"What is {i} plus {j}? The answer is {i + j}. user assistant system"


def train() -> Any:
    """Return a new byte-level BPE tokenizer with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START, TURN_END],
        model_max_length=4096,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def retrain(original: Any) -> Any:
    """Return a tokenizer of the same kind, special tokens and chat template, with a small vocabulary.

    One that cannot be retrained (no `tokenizers` backend) is returned as it is, its whole vocabulary kept.
    """
    if not getattr(original, "is_fast", False):
        return original
    size = VOCABULARY + len(original.get_added_vocab())
    small = original.train_new_from_iterator(sentences(), vocab_size=size, show_progress=False)
    known = small.get_vocab()
    small.add_tokens([token for token in original.get_added_vocab() if token not in known])
    small.chat_template = original.chat_template
    return small
