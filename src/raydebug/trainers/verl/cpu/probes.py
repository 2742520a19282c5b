"""Ask the installed packages whether each patch is still needed, or no longer fits.

Run it in a process of its own without VERL_PLATFORM, so that the packages are as they come:
`python -m raydebug.trainers.verl.cpu.probes` prints one line for each patch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from raydebug.trainers.verl.cpu.patches import PATCHES, Patch, find_target

NEEDED, UNNECESSARY, WRONG = "needed", "unnecessary", "wrong"


def probe(patch: Patch) -> tuple[str, str]:
    """Return the verdict on one patch, and the reason in words."""
    try:
        target = getattr(*find_target(patch))
    except (ImportError, AttributeError) as failure:
        return WRONG, f"{patch.target} is gone: {failure}"
    missing = [name for name in patch.parameters if name not in inspect.signature(target).parameters]
    if missing:
        return WRONG, f"{patch.target} takes no {', '.join(missing)}: {inspect.signature(target)}"
    return (NEEDED, patch.reason) if _STILL_NEEDED[patch.name]() else (UNNECESSARY, "works without it")


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


_STILL_NEEDED: dict[str, Callable[[], bool]] = {
    "one-backend-per-device": _torch_refuses_one_device_twice,
    "reference-model-unpinned": _verl_pins_what_cannot_be_pinned,
    "critic-torch-attention": _critic_asks_for_flash_attention,
    "loadable-cpu-weights": _vllm_empties_the_weight,
}

if __name__ == "__main__":
    from raydebug import render

    for patch in PATCHES:
        render.out("\t".join((patch.name, *probe(patch))))
