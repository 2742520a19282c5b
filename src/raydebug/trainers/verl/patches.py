"""Repair what models with images need of verl and vLLM, on any platform, in the modules that RAYDEBUG_PATCHES names.

On a CPU the distribution raydebug-cpu (packages/) applies both always, beside what only a CPU needs; its table of
patches has their reasons and sources, and its tests say whether they are still needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from raydebug.protocol import variables

NORMALIZATION, EQUAL_LENGTHS = "image-normalization-kept", "position-ids-of-equal-lengths"


def is_on_cpu(environ: Mapping[str, str]) -> bool:
    """Return whether verl is to run on the CPU.

    Source: verl 0.9.1 plugin/platform/platform_manager.py:109 reads VERL_PLATFORM, stripped and lowered.
    """
    return environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"


def is_patched(name: str, environ: Mapping[str, str]) -> bool:
    """Return whether a patch is applied in a process with this environment."""
    return is_on_cpu(environ) or name in [word.strip() for word in environ.get(variables.PATCHES, "").split(",")]


def patch(module: ModuleType, environ: Mapping[str, str]) -> None:
    """Repair a module that has just been imported; raydebug-cpu does that itself."""
    if is_on_cpu(environ):
        return
    if hasattr(module, "maybe_fix_3d_position_ids") and is_patched(EQUAL_LENGTHS, environ):
        module.maybe_fix_3d_position_ids = keep_axes_of_equal_lengths(module.maybe_fix_3d_position_ids)  # type: ignore[attr-defined]
    if hasattr(module, "FusedInputNorm") and is_patched(NORMALIZATION, environ):
        module.FusedInputNorm.__init__ = keep_image_normalization(module.FusedInputNorm.__init__)


def keep_axes_of_equal_lengths(original: Any) -> Any:
    """Rebuild 3D position ids whose sequences are all equally long; leave others to verl."""

    def maybe_fix_3d_position_ids(data: Any) -> None:
        from verl.utils.tensordict_utils import nested_tensor_from_tensor_list

        ids = data["position_ids"] if "position_ids" in data.keys() else None  # noqa: SIM118 - a TensorDict
        if ids is None or not ids.is_nested or ids.dim() != 3:
            return
        values, offsets = ids.values(), ids.offsets()
        if int(offsets[-1]) == values.shape[-1]:  # (axes, sum of lengths): ragged in the last dimension, as it should
            original(data)
            return
        rows = values.reshape(offsets.numel() - 1, -1, values.shape[-1])  # (batch x axes, length), axes taken as ragged
        data["position_ids"] = nested_tensor_from_tensor_list(list(rows.unbind(0)), ragged_idx=2)

    return maybe_fix_3d_position_ids


def keep_image_normalization(original: Any) -> Any:
    """Take the buffers of the image normalization out of the state dict, which vLLM fills with random values."""

    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - replaces one
        original(self, *args, **options)
        self._non_persistent_buffers_set.update(("weight", "bias"))

    return __init__
