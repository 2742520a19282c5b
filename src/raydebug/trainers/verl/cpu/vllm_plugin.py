"""The `vllm.general_plugins` entry point: vLLM calls it in its server, its EngineCore and its workers."""

from __future__ import annotations

import os

from raydebug.trainers.verl.cpu import wanted


def register() -> None:
    """Keep vLLM's CPU weights loadable while it runs; do nothing unless VERL_PLATFORM=cpu."""
    if not wanted(os.environ):
        return
    from raydebug.trainers.verl.cpu import patches, vllm_dist

    vllm_dist.offer()
    patches.apply("vllm")
