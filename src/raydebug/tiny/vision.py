"""What a tiny vision-language model has beside a text model: vision tokens, a vision tower, an image processor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raydebug.errors import UsageError
from raydebug.tiny import needed_for

VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
# Messages whose content is text, or a list of texts, images and videos; Qwen2.5-VL's form without a system prompt.
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
# Sides of an image in units of what makes one token: 4 tokens at least, 16 at most.
SMALLEST, LARGEST = 2, 4


def vision_settings(tokenizer: Any) -> dict[str, Any]:
    """Return the settings of Qwen2.5-VL's config beside those of its text model: vision tower and token ids."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in VISION_TOKENS}
    return {
        "vision_config": {
            "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": 64,
            "patch_size": 14, "window_size": 112, "fullatt_block_indexes": [1],
        },
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }  # fmt: skip


def fit_vision(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a shrunk vision config whose lists of layers name layers that it still has.

    Source: transformers 5.9 models/qwen2_5_vl (fullatt_block_indexes), models/qwen3_vl (deepstack_visual_indexes).
    """
    layers = config.get("depth")
    if not isinstance(layers, int):
        return dict(config)
    lists = {key: value for key, value in config.items() if key.endswith("_indexes") and isinstance(value, list)}
    return {**config, **{key: [layers - 1] if key.startswith("fullatt") else [*range(min(layers, len(value)))]
                         for key, value in lists.items()}}  # fmt: skip


def make_processor(tokenizer: Any, transformers: Any) -> Any:
    """Return Qwen2.5-VL's processor with small images around a tokenizer."""
    _require_torchvision()
    images, videos = transformers.Qwen2VLImageProcessor(), transformers.Qwen2VLVideoProcessor()
    return _with_small_images(
        transformers.Qwen2_5_VLProcessor(
            image_processor=images, tokenizer=tokenizer, video_processor=videos, chat_template=TEMPLATE
        )
    )


def processor_like(like: Path, tokenizer: Any, transformers: Any) -> Any:
    """Return the processor of a model's folder around another tokenizer, with small images; None if it has none.

    Raises:
        RaydebugError: it cannot be loaded.
    """
    if not any((like / name).is_file() for name in PROCESSOR_FILES):
        return None
    _require_torchvision()
    try:
        original = transformers.AutoProcessor.from_pretrained(like, local_files_only=True)
    except (OSError, ValueError, TypeError, ImportError) as failure:
        raise UsageError(
            f"the processor of '{like}' cannot be loaded",
            cause=(str(failure).strip().splitlines() or [repr(failure)])[0],
            fix="copy its processor files again: preprocessor_config.json, chat_template.json",
            code="tiny.no-processor",
        ) from failure
    if not hasattr(original, "image_processor"):
        return None
    parts = {name: getattr(original, name, None) for name in original.get_attributes()}
    template = original.chat_template or tokenizer.chat_template
    return _with_small_images(type(original)(**{**parts, "tokenizer": tokenizer}, chat_template=template))


def _with_small_images(processor: Any) -> Any:
    """Limit the size of images, where the processor has such limits in pixels.

    Source: transformers 5.9 models/qwen2_vl/image_processing_qwen2_vl.py: size has the least and most pixels.
    """
    parts: tuple[Any, ...] = (processor.image_processor, getattr(processor, "video_processor", None))
    for part in parts:
        patch, merge = getattr(part, "patch_size", None), getattr(part, "merge_size", None)
        if isinstance(patch, int) and isinstance(merge, int) and "longest_edge" in (part.size or {}):
            unit = patch * merge
            part.size = {"shortest_edge": (SMALLEST * unit) ** 2, "longest_edge": (LARGEST * unit) ** 2}
    return processor


def _require_torchvision() -> None:
    with needed_for("a tiny vision model", "torchvision", "; the processors of vision-language models import it"):
        import torchvision  # noqa: F401
