"""The `verl.plugins` entry point: verl imports this module at the end of `import verl`, in every process.

Source: verl 0.9.1 __init__.py:63-88 loads each entry point but never calls it, and hides what goes wrong at debug
level. So the work is done at import, and a failure is written to stderr before it is passed on.
"""

from __future__ import annotations

import os
import sys

from raydebug.trainers.verl.patches import is_on_cpu


def register() -> None:
    """Make this process's verl run on the CPU with VERL_PLATFORM=cpu."""
    if not is_on_cpu(os.environ):
        return
    from raydebug_cpu import patches, vllm_plugin

    # The FSDP engine is registered for "cuda" and "npu" only; this is verl's own override of that look-up.
    # Source: verl 0.9.1 workers/engine/base.py:402.
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
    vllm_plugin.offer()
    import raydebug_cpu.platform  # noqa: F401 - importing registers PlatformCPU with verl

    patches.apply("verl")


try:
    register()
except Exception as failure:
    # verl would go on without the plug-in and fail later with "Unknown platform 'cpu'", which names nothing.
    sys.stderr.write(f"raydebug: verl's CPU plug-in could not start: {failure!r}\n")
    raise
