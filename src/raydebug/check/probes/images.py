"""Facts about the images of a training: what the rows hold, what does not decode, how many tokens a prompt takes."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from raydebug.check.probes import Facts
from raydebug.check.probes.plan import Plan
from raydebug.findings import describe_exception, in_a_line
from raydebug.settings.flavours import installed_version
from raydebug.trainers.config import TrainingConfig
from raydebug.trainers.verl.vision import breaks_equal_lengths, config_of, loses_normalization

PLACEHOLDER = "<image>"
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "chat_template.json", "chat_template.jinja")
DECODE_S = 2.0  # decoding ends after so many seconds, wherever it is


def _sequences_of_a_rank(config: TrainingConfig) -> int | None:
    """Return how many sequences a rank gets of a batch; None where a number is not known."""
    prompts, rollouts = config.get("train_batch_size"), config.get("rollouts_per_prompt")
    return (
        prompts * rollouts // max(1, config.ranks or 1)
        if isinstance(prompts, int) and isinstance(rollouts, int)
        else None
    )


def has_vision(config: TrainingConfig) -> bool | None:
    """Return whether the model's config.json has a vision tower; None where it cannot be read."""
    said = config_of(str(config.get("model")))
    return "vision_config" in said if said else None


def look_at_images(plan: Plan, rows: Sequence[Facts]) -> Facts:
    """Return what the rows hold of images.

    Source: verl 0.9.1 utils/dataset/rl_dataset.py _build_messages: each `<image>` in a message takes the next image of
    the column data.image_key.

    Returns:
        `vision`: whether the model takes images; `column`, `in_data`: the column and whether it is there; `others`:
        columns that look like one; `placeholders`, `images`: their sums; `differs`: the first row where they differ;
        `broken`: the first image that does not decode.
    """
    config = plan.config
    column, prompt = str(config.get("image_column")), config.get("prompt_column")
    has_images = any(row.get(column) for row in rows)
    can_decode = has_images and plan.has("the images of the rows", "PIL")
    found: Facts = {
        "vision": has_vision(config),
        "column": column,
        "in_data": bool(rows) and column in rows[0],
        "others": sorted(name for name, value in (rows[0] if rows else {}).items() if _is_images(value)),
        "placeholders": 0,
        "images": 0,
    }
    deadline = time.monotonic() + DECODE_S
    for index, row in enumerate(rows):
        wanted, images = count_placeholders(row.get(prompt)), row.get(column) or []
        found["placeholders"] += wanted
        found["images"] += len(images)
        if wanted != len(images):
            found.setdefault("differs", {"row": index, "placeholders": wanted, "images": len(images)})
        if can_decode and "broken" not in found and time.monotonic() < deadline:
            found |= _decode(images, index)
    return found


def count_placeholders(messages: Any) -> int:
    """Return how many images a prompt names."""
    if not isinstance(messages, list):
        return 0
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    return sum(content.count(PLACEHOLDER) for content in contents if isinstance(content, str))


def _is_images(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and bool({"bytes", "path"} & first.keys()) and "role" not in first


def _decode(images: Sequence[Any], row: int) -> Facts:
    for place, image in enumerate(images):
        try:
            open_image(image).load()
        except Exception as failure:  # noqa: BLE001 - pillow raises its own, struct.error, SyntaxError
            return {"broken": {"row": row, "image": place, "said": in_a_line(failure)}}
    return {}


def open_image(image: Any) -> Any:
    """Return an image of a row as pillow has it: {bytes, path} or a path.

    Raises:
        Exception: it is none.
    """
    from PIL import Image

    if isinstance(image, dict) and image.get("bytes") is not None:
        return Image.open(io.BytesIO(image["bytes"]))
    path = (image.get("path") or image.get("image")) if isinstance(image, dict) else image
    return Image.open(str(path).removeprefix("file://"))


def count_tokens(config: TrainingConfig, options: Facts) -> Callable[[Any, Sequence[Any]], tuple[int, int]] | None:
    """Return a function that counts the tokens of a prompt with images and those of its images; None if there is none.

    Source: verl 0.9.1 utils/dataset/rl_dataset.py maybe_filter_out_long_prompts. Nothing is fetched, no code of the
    model is run.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
    from transformers import AutoProcessor

    path = os.path.expanduser(str(config.get("tokenizer") or config.get("model")))  # noqa: PTH111
    try:
        processor = AutoProcessor.from_pretrained(path, trust_remote_code=bool(config.get("trust_remote_code")))
    except Exception:  # noqa: BLE001 - whatever it is, stage `model` names it
        return None
    if not hasattr(processor, "image_processor"):
        return None
    token = getattr(processor, "image_token_id", None)
    limits = dict(config.get("image_options") or {})

    def count(messages: Any, images: Sequence[Any]) -> tuple[int, int]:
        text = processor.apply_chat_template(
            split_messages(messages), add_generation_prompt=True, tokenize=False, **options
        )
        opened = [open_image(image).convert("RGB") for image in images]
        ids = list(processor(text=[text], images=opened, **limits)["input_ids"][0])
        return len(ids), ids.count(token)

    return count


def split_messages(messages: Any) -> list[Facts]:
    """Return messages with each `<image>` as a part of its own, as a processor's chat template takes them."""
    split = []
    for message in messages:
        parts = [part for part in re.split(f"({PLACEHOLDER})", message["content"]) if part]
        content = [{"type": "image"} if part == PLACEHOLDER else {"type": "text", "text": part} for part in parts]
        split.append({**message, "content": content})
    return split


def look_at_processor(plan: Plan, folder: Path, architecture: str) -> Facts:
    """Return whether the processor of a model with vision loads, and which traps of verl and vLLM are installed.

    Source: verl 0.9.1 utils/tokenizer/tokenizer.py hf_processor, which returns None for whatever fails.
    """
    config = plan.config
    found: Facts = {
        "files": [name for name in PROCESSOR_FILES if (folder / name).is_file()],
        "loses_normalization": loses_normalization(str(config.get("load_format")), architecture),
        "breaks_equal_lengths": breaks_equal_lengths(),
        "sequences": _sequences_of_a_rank(config),
        "verl": installed_version("verl"),
    }
    if not plan.has("the model's processor", "torch", "transformers"):
        return {**found, "skipped": True}
    if importlib.util.find_spec("torchvision") is None:
        # torch 2.N has torchvision 0.(N + 15): github.com/pytorch/vision#installation
        torch = re.match(r"2\.(\d+)\.(\d+)", installed_version("torch") or "")
        return {**found, "no_torchvision": True, "fitting": f"0.{int(torch[1]) + 15}.{torch[2]}" if torch else None}
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(folder, trust_remote_code=bool(config.get("trust_remote_code")))
        if not hasattr(processor, "image_processor"):
            raise TypeError(f"{type(processor).__name__} takes no images")
        message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}]
        token = getattr(processor, "image_token", None)
        said = processor.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    except Exception as failure:  # noqa: BLE001 - a broken file, a template, code of the processor
        return {**found, "failed": describe_exception(failure)}
    return {**found, "class": type(processor).__name__, "template": token is None or token in said}
