"""verl on a CPU, through verl's and vLLM's own plug-in hooks; inert unless VERL_PLATFORM=cpu.

Reading order: `verl_plugin` (verl's entry point), `vllm_plugin` (vLLM's, and the distribution name that verl asks for),
`platform` (what a CPU is to verl), `patches` (what no hook reaches, one small function each).
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["wanted"]


def wanted(environ: Mapping[str, str]) -> bool:
    """Return whether this process is to run verl on the CPU.

    Source: verl 0.9.1 plugin/platform/platform_manager.py:109 reads VERL_PLATFORM, stripped and lowered.
    """
    return environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"
