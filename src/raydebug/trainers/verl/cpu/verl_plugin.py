"""The `verl.plugins` entry point: verl imports this module at the end of `import verl`, in every process.

Source: verl 0.9.1 __init__.py:63-88 loads each entry point but never calls it, and hides what goes wrong at debug
level. So the work is done at import, and a failure is written to stderr before it is passed on.
"""

from __future__ import annotations

import os
import sys

from raydebug.trainers.verl.after_import import after_import
from raydebug.trainers.verl.cpu import apply_asked, wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def register() -> None:
    """Make this process's verl run on the CPU with VERL_PLATFORM=cpu; else apply the patches that are asked for."""
    after_import("verl.trainer.ppo.v1.trainer_sync", _offer_replay)
    if not wanted(os.environ):
        apply_asked("verl", os.environ)
        return
    from raydebug.trainers.verl.cpu import patches, vllm_plugin

    # The FSDP engine is registered for "cuda" and "npu" only; this is verl's own override of that look-up.
    # Source: verl 0.9.1 workers/engine/base.py:402.
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
    vllm_plugin.offer()
    import raydebug.trainers.verl.cpu.platform  # noqa: F401 - importing registers PlatformCPU with verl

    patches.apply("verl")


def _offer_replay(_module: ModuleType) -> None:
    """Register the trainer of `run --replay` beside verl's own."""
    import raydebug.trainers.verl.replay  # noqa: F401 - importing registers it


try:
    register()
except Exception as failure:
    # verl would go on without the plug-in and fail later with "Unknown platform 'cpu'", which names nothing.
    sys.stderr.write(f"raydebug: verl's CPU plug-in could not start: {failure!r}\n")
    raise
