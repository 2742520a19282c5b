"""Build a tiny random model: Qwen2 of about 100,000 parameters, or the shrunk likeness of another model."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydebug.errors import Exit, RaydebugError
from raydebug.tiny import shape, words
from raydebug.tiny.folder import appearing


@dataclass(frozen=True)
class TinyModel:
    """A model that was built.

    Args:
        path: its folder.
        architecture: the class that transformers loads it with.
        parameters: how many numbers it has.
        seconds: how long it took.
    """

    path: str
    architecture: str
    parameters: int
    seconds: float


def build_model(target: Path, *, like: Path | None = None, seed: int = 0) -> TinyModel:
    """Build a tiny model with tokenizer and chat template in `target`; the same seed gives the same bytes.

    Args:
        target: the folder to be.
        like: a model's folder, whose architecture, special tokens and chat template are taken; None for Qwen2.
        seed: seeds the weights.

    Raises:
        RaydebugError: torch or transformers is missing, `like` is no model, the target is taken or the disk is full.
    """
    started_s = time.monotonic()
    if like is not None:
        _require_config(like)
    with appearing(target) as folder:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported
        torch, transformers = _import_libraries()
        config, tokenizer = _likeness(like, transformers) if like else _qwen2(transformers)
        torch.manual_seed(seed)
        model = _random_model(config, transformers)
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        transformers.GenerationConfig(
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
        ).save_pretrained(folder)
    return TinyModel(
        path=os.path.abspath(target.expanduser()),
        architecture=type(model).__name__,
        parameters=sum(weight.numel() for weight in model.parameters()),
        seconds=round(time.monotonic() - started_s, 2),
    )


def _require_config(like: Path) -> None:
    if not (like / "config.json").is_file():
        raise RaydebugError(
            f"'{like}' is no model",
            cause=f"there is no file '{like / 'config.json'}'" if like.is_dir() else "there is no such folder",
            fix="give --like the folder of a downloaded model, the one with config.json in it",
            code="tiny.no-config",
            exit_code=Exit.USAGE,
        )


def _import_libraries() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as failure:
        raise RaydebugError(
            "a tiny model needs torch and transformers",
            cause=f"{failure} (this is the core flavour, which has neither)",
            fix="install the cpu flavour: pip install --require-hashes -r env/cpu.lock",
            code="tiny.no-torch",
        ) from failure
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return torch, transformers


def _qwen2(transformers: Any) -> tuple[Any, Any]:
    tokenizer = words.train()
    config = transformers.Qwen2Config(
        vocab_size=_padded(len(tokenizer)),
        hidden_size=shape.HIDDEN,
        intermediate_size=2 * shape.HIDDEN,
        num_hidden_layers=shape.LAYERS,
        num_attention_heads=shape.HEADS,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        architectures=["Qwen2ForCausalLM"],
    )
    return config, tokenizer


def _likeness(like: Path, transformers: Any) -> tuple[Any, Any]:
    try:
        original = transformers.AutoConfig.from_pretrained(like, local_files_only=True)
    except (ValueError, KeyError, OSError) as failure:
        raise RaydebugError(
            f"'{like / 'config.json'}' is no config that transformers {transformers.__version__} knows",
            cause=(str(failure).strip().splitlines() or [repr(failure)])[0],
            fix="give --like a model whose architecture is part of transformers (code of its own is never run)",
            code="tiny.unknown-architecture",
            exit_code=Exit.USAGE,
        ) from failure
    old_words = _tokenizer_of(like, transformers)
    tokenizer = words.retrain(old_words) if old_words else words.train()

    def new_id(old: int) -> int | None:
        if tokenizer is old_words:
            return old
        token = old_words.convert_ids_to_tokens(old) if old_words and old < len(old_words) else None
        new: int | None = tokenizer.get_vocab().get(token)
        return new

    values = shape.rename_token_ids(shape.shrink(original.to_dict()), new_id)
    for part in (values, values.get("text_config")):
        if part and "vocab_size" in part:
            part["vocab_size"] = _padded(len(tokenizer))
    values.pop("quantization_config", None)  # the weights are new, and plain
    return type(original).from_dict(values), tokenizer


def _tokenizer_of(like: Path, transformers: Any) -> Any:
    """Return the tokenizer of a model's folder; None when it has none."""
    try:
        return transformers.AutoTokenizer.from_pretrained(like, local_files_only=True)
    except (OSError, ValueError):
        return None


def _random_model(config: Any, transformers: Any) -> Any:
    name = (config.architectures or [""])[0]
    architecture = getattr(transformers, name, None)
    if architecture is None:
        raise RaydebugError(
            f"the architecture '{name}' is not part of transformers {transformers.__version__}",
            cause="'architectures' in its config.json",
            fix="give --like a model whose architecture is (code of its own is never run)",
            code="tiny.unknown-architecture",
            exit_code=Exit.USAGE,
        )
    return architecture(config)


def _padded(words_known: int) -> int:
    """Round up to a multiple of 64, as models do for their matrices."""
    return (words_known + 63) // 64 * 64
