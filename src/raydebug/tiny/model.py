"""Build a tiny random model: Qwen2 of about 100,000 parameters, Qwen2.5-VL, or the shrunk likeness of another model.

A likeness has the same architecture with every size small (`shrink`), and its tokenizer is trained anew on arithmetic
sentences. The libraries are imported by the functions that need them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydebug.errors import UsageError
from raydebug.tiny import appearing, needed_for
from raydebug.tiny import vision as images

HIDDEN = 64
HEADS = 2
HEAD_DIM = 32
LAYERS = 2
EXPERTS = 4
# The size of each key when it is present and larger; other keys stay as they are. Names as transformers 5.9 has them.
_SIZES: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embed_dim"), HIDDEN),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff"), 2 * HIDDEN),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), HIDDEN),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "depth", "max_window_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads"), HEADS),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), EXPERTS),
    **dict.fromkeys(("num_experts_per_tok", "n_group"), 2),
    "topk_group": 1,
    "first_k_dense_replace": 1,
    **dict.fromkeys(("head_dim", "v_head_dim", "qk_nope_head_dim"), HEAD_DIM),
    **dict.fromkeys(("qk_rope_head_dim", "q_lora_rank", "kv_lora_rank"), HEAD_DIM // 2),
    "out_hidden_size": HIDDEN,  # a vision tower's output must fit the language model
}
_TOKEN_ID = ("_token_id", "_token_ids")
VOCABULARY = 512
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class TinyModel:
    """A model that was built."""

    path: str
    architecture: str
    parameters: int
    seconds: float


def build_model(target: Path, *, like: Path | None = None, vision: bool = False, seed: int = 0) -> TinyModel:
    """Build a tiny model with tokenizer and chat template in `target`; the same seed gives the same bytes.

    Args:
        target: the folder to be.
        like: a model's folder, whose architecture, special tokens, chat template and processor are taken; None for
            Qwen2.
        vision: without `like`, Qwen2.5-VL with its processor instead of Qwen2.
        seed: seeds the weights.

    Raises:
        RaydebugError: torch or transformers is missing, `like` is no model, the target is taken or the disk is full.
    """
    started_s = time.monotonic()
    if like is not None and not (like / "config.json").is_file():
        raise UsageError(
            f"'{like}' is not a model",
            cause=f"there is no file '{like / 'config.json'}'" if like.is_dir() else "there is no such folder",
            fix="give --like the folder of a downloaded model, the one with config.json in it",
            code="tiny.no-config",
        )
    with appearing(target) as folder:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported
        with needed_for("a tiny model", "torch and transformers", " (this is the core flavour, which has neither)"):
            import torch
            import transformers
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        config, tokenizer, processor = _parts(like, vision, transformers)
        torch.manual_seed(seed)
        model = _random_model(config, transformers)
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if processor is not None:
            processor.save_pretrained(folder)
        transformers.GenerationConfig(
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
        ).save_pretrained(folder)
    return TinyModel(
        path=os.path.abspath(target.expanduser()),
        architecture=type(model).__name__,
        parameters=sum(weight.numel() for weight in model.parameters()),
        seconds=round(time.monotonic() - started_s, 2),
    )


def _parts(like: Path | None, vision: bool, transformers: Any) -> tuple[Any, Any, Any]:
    """Return config, tokenizer and processor; None for the processor of a text model."""
    if like is not None:
        config, tokenizer = _likeness(like, transformers)
        return config, tokenizer, images.processor_like(like, tokenizer, transformers)
    if not vision:
        tokenizer = train_tokenizer()
        text = {**_qwen2(tokenizer), "tie_word_embeddings": False}
        return transformers.Qwen2Config(**text, architectures=["Qwen2ForCausalLM"]), tokenizer, None
    tokenizer = train_tokenizer(images.VISION_TOKENS, images.TEMPLATE)
    axes = [HEAD_DIM // 8, HEAD_DIM * 3 // 16, HEAD_DIM * 3 // 16]  # time, height, width: half of a head
    rope = {"rope_type": "default", "mrope_section": axes, "rope_theta": 1e6}
    config = transformers.Qwen2_5_VLConfig(
        text_config={**_qwen2(tokenizer), "rope_parameters": rope},
        tie_word_embeddings=False,
        architectures=["Qwen2_5_VLForConditionalGeneration"],
        **images.vision_settings(tokenizer),
    )
    return config, tokenizer, images.make_processor(tokenizer, transformers)


def _qwen2(tokenizer: Any) -> dict[str, Any]:
    return {
        "vocab_size": _padded(len(tokenizer)),
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "max_position_embeddings": 2048,
        "bos_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _likeness(like: Path, transformers: Any) -> tuple[Any, Any]:
    try:
        original = transformers.AutoConfig.from_pretrained(like, local_files_only=True)
    except (ValueError, KeyError, OSError) as failure:
        raise UsageError(
            f"'{like / 'config.json'}' is not a config that transformers {transformers.__version__} knows",
            cause=(str(failure).strip().splitlines() or [repr(failure)])[0],
            fix="give --like a model whose architecture is part of transformers (code of its own is never run)",
            code="tiny.unknown-architecture",
        ) from failure
    try:
        old_words = transformers.AutoTokenizer.from_pretrained(like, local_files_only=True)
    except (OSError, ValueError):  # it has none
        old_words = None
    tokenizer = retrain_tokenizer(old_words) if old_words else train_tokenizer()

    def new_id(old: int) -> int | None:
        if tokenizer is old_words:
            return old
        token = old_words.convert_ids_to_tokens(old) if old_words and old < len(old_words) else None
        new: int | None = tokenizer.get_vocab().get(token)
        return new

    values = rename_token_ids(shrink(original.to_dict()), new_id)
    for part in (values, values.get("text_config")):
        if part and "vocab_size" in part:
            part["vocab_size"] = _padded(len(tokenizer))
    values.pop("quantization_config", None)  # the weights are new, and plain
    return type(original).from_dict(values), tokenizer


def _random_model(config: Any, transformers: Any) -> Any:
    name = (config.architectures or [""])[0]
    architecture = getattr(transformers, name, None)
    if architecture is None:
        raise UsageError(
            f"the architecture '{name}' is not part of transformers {transformers.__version__}",
            cause="'architectures' in its config.json",
            fix="give --like a model whose architecture is (code of its own is never run)",
            code="tiny.unknown-architecture",
        )
    return architecture(config)


def _padded(words_known: int) -> int:
    """Round up to a multiple of 64, as models do for their matrices."""
    return (words_known + 63) // 64 * 64


def shrink(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with every size made small, nested configs too.

    Heads keep their grouping: where several query heads share a key head, they still do.
    """
    small: dict[str, object] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and key.endswith("_config"):
            small[key] = shrink(value)
        elif key in _SIZES and isinstance(value, int) and not isinstance(value, bool):
            small[key] = min(value, _SIZES[key])
        else:
            small[key] = value
    heads, key_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(key_heads, int):
        small["num_key_value_heads"] = small["num_attention_heads"] if key_heads == heads else 1
    layers = small.get("num_hidden_layers")
    if isinstance(layers, int):
        small.update({k: list(v)[:layers] for k, v in config.items() if k.endswith("layer_types") and v})
    _fit_rotary_sections(small)
    return images.fit_vision(small)


def _fit_rotary_sections(small: dict[str, Any]) -> None:
    """Make the sections of a multi-axis rotary embedding add up to half of the shrunk head."""
    head_dim = small.get("head_dim") or HEAD_DIM
    for key in ("rope_scaling", "rope_parameters"):
        rope = small.get(key)
        if isinstance(rope, Mapping) and rope.get("mrope_section"):
            axes = len(rope["mrope_section"])
            rest = head_dim // 2 // axes
            small[key] = {**rope, "mrope_section": [head_dim // 2 - rest * (axes - 1), *[rest] * (axes - 1)]}


def rename_token_ids(config: Mapping[str, Any], new_id: Callable[[int], int | None]) -> dict[str, Any]:
    """Return the config, nested ones too, with every token id replaced; an id without a successor becomes None."""
    renamed: dict[str, object] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and key.endswith("_config"):
            renamed[key] = rename_token_ids(value, new_id)
        elif key.endswith(_TOKEN_ID) and isinstance(value, int):
            renamed[key] = new_id(value)
        elif key.endswith(_TOKEN_ID) and isinstance(value, list):
            renamed[key] = [kept for kept in map(new_id, value) if kept is not None] or None
        else:
            renamed[key] = value
    return renamed


def sentences() -> Iterator[str]:
    """Yield what the tokenizer is trained on: the words of the tiny dataset."""
    for i in range(40):
        for j in range(40):
            yield f"What is {i} plus {j}? The answer is {i + j}. user assistant system"


def train_tokenizer(more_tokens: Sequence[str] = (), template: str = CHAT_TEMPLATE) -> Any:
    """Return a new byte-level BPE tokenizer with a chat template and, if asked for, more special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END, *more_tokens],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START, TURN_END, *more_tokens],
        model_max_length=4096,
    )
    fast.chat_template = template
    return fast


def retrain_tokenizer(original: Any) -> Any:
    """Return a tokenizer of the same kind, special tokens and chat template, with a small vocabulary.

    One that cannot be retrained (no `tokenizers` backend) is returned as it is, its whole vocabulary kept.
    """
    if not getattr(original, "is_fast", False):
        return original
    size = VOCABULARY + len(original.get_added_vocab())
    small = original.train_new_from_iterator(sentences(), vocab_size=size, show_progress=False)
    vocabulary = small.get_vocab()
    small.add_tokens([token for token in original.get_added_vocab() if token not in vocabulary])
    small.chat_template = original.chat_template
    return small
