"""Models with images: two defects of verl and vLLM, where they are installed, and what a profile changes.

`patches.py` repairs both defects, on a CPU always, elsewhere if RAYDEBUG_PATCHES names them. What is installed is
read from its source: importing vLLM takes 12 s.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydebug.trainers.config import package_folder
from raydebug.trainers.hub import model_folder
from raydebug.trainers.verl.patches import EQUAL_LENGTHS, NORMALIZATION, is_patched

if TYPE_CHECKING:
    from raydebug.trainers.settings import Settings

# Their processors take min_pixels and max_pixels; others refuse them.
QWEN_VL = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
LARGE_PIXELS = 448 * 448  # 256 tokens; what the profile `debug` leaves of an image


def fit_images(settings: Settings) -> None:
    """Let the rollout engine read the weights itself where it would lose the normalization of images."""
    if not settings.has("load_format"):
        return
    names = config_of(settings.text("model") or "").get("architectures") or [""]
    if loses_normalization(settings.text("load_format") or "", str(names[0])):
        settings.change("load_format", "safetensors", "with dummy this vLLM loses the normalization of images")


def takes_large_images(model: str) -> bool:
    """Return whether a model's processor is one of Qwen-VL and takes images of more than LARGE_PIXELS."""
    if not str(config_of(model).get("model_type")).startswith(QWEN_VL):
        return False
    # transformers 5 writes the first file, older ones the second.
    newer, older = config_of(model, "processor_config.json"), config_of(model, "preprocessor_config.json")
    options = next((it for it in (newer.get("image_processor"), older) if isinstance(it, dict) and it), {})
    size = options.get("size")
    limit = options.get("max_pixels") or (size.get("longest_edge") if isinstance(size, dict) else None)
    return not isinstance(limit, int) or limit > LARGE_PIXELS


def config_of(model: str, file: str = "config.json") -> dict[str, Any]:
    """Return a JSON file of a model's folder; empty if it cannot be read."""
    try:
        document = json.loads(((model_folder(model) or Path(model)) / file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def loses_normalization(load_format: str, architecture: str) -> bool:
    """Return whether rollouts of a model would not see its images.

    vLLM keeps the normalization in buffers, load_format=dummy fills them with random values, and verl sends parameters
    only. Source: vllm 0.28.0 model_executor/models/vision.py FusedInputNorm, model_loader/weight_utils.py
    initialize_dummy_weights; github.com/vllm-project/vllm/pull/50411.
    """
    vllm = package_folder("vllm")
    if vllm is None or not load_format.startswith("dummy") or is_patched(NORMALIZATION, os.environ):
        return False
    models = vllm / "model_executor" / "models"
    named = re.search(rf'"{re.escape(architecture)}": \(\s*"(\w+)"', _text(models / "registry.py"))
    uses = named is not None and "FusedInputNorm" in _text(models / f"{named[1]}.py")
    return uses and 'register_buffer("weight", weight)' in _text(models / "vision.py")


def breaks_equal_lengths() -> bool:
    """Return whether verl splits the position ids of equally long sequences along the wrong dimension.

    Source: verl 0.9.1 utils/tensordict_utils.py maybe_fix_3d_position_ids; github.com/verl-project/verl/issues/7899.
    """
    verl = package_folder("verl")
    if verl is None or is_patched(EQUAL_LENGTHS, os.environ):
        return False
    return "_ragged_idx = 2" in _text(verl / "utils" / "tensordict_utils.py")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
