"""verl on a CPU, through verl's and vLLM's own plug-in hooks; inert unless VERL_PLATFORM=cpu, but for torchvision.

Reading order: `verl_plugin` (verl's entry point), `vllm_plugin` (vLLM's, and the distribution name that verl asks for),
`platform` (what a CPU is to verl), `patches` (what no hook reaches, one small function each), `torchvision` (beside a
torch without CUDA).
"""

from __future__ import annotations

TYPE_CHECKING = False  # each Python of the flavour cpu imports this package at its start, for `torchvision`
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["apply_asked", "asked_patches", "wanted"]


def wanted(environ: Mapping[str, str]) -> bool:
    """Return whether this process is to run verl on the CPU.

    Source: verl 0.9.1 plugin/platform/platform_manager.py:109 reads VERL_PLATFORM, stripped and lowered.
    """
    return environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"


def asked_patches(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the patches that RAYDEBUG_PATCHES asks for, on any platform."""
    return frozenset(name.strip() for name in environ.get("RAYDEBUG_PATCHES", "").split(",") if name.strip())


def apply_asked(package: str, environ: Mapping[str, str]) -> None:
    """Apply the patches of `verl` or `vllm` that RAYDEBUG_PATCHES names."""
    if names := asked_patches(environ):
        from raydebug.trainers.verl.cpu import patches

        patches.apply(package, names)
