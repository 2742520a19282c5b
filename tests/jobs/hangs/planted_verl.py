"""Stalls planted in a real verl 0.9 training: this file is the sitecustomize.py of its processes.

The file that $PLANTED names has the name of the stall that is on now; an empty file is a healthy training.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
import sys
import time
from pathlib import Path


def planted() -> str:
    """Return the stall that is on now."""
    return Path(os.environ["PLANTED"]).read_text(encoding="utf-8").strip()


def _late(name, original):  # type: ignore[no-untyped-def]
    """Return a coroutine function that waits while a stall is on, and then does its work."""

    @functools.wraps(original)
    async def late(*args, **kwargs):  # type: ignore[no-untyped-def]
        while planted() == name:
            await asyncio.sleep(0.3)
        return await original(*args, **kwargs)

    return late


def _transfer_queue(module):  # type: ignore[no-untyped-def]
    module.async_kv_batch_put = _late("full buffer", module.async_kv_batch_put)
    put, late_put, lost = module.async_kv_put, _late("lost uid", module.async_kv_put), []

    @functools.wraps(put)
    async def async_kv_put(*args, **kwargs):  # type: ignore[no-untyped-def]
        if (kwargs.get("tag") or {}).get("status") != "finished" or planted() != "lost uid":
            return await put(*args, **kwargs)
        lost.append(asyncio.create_task(late_put(*args, **kwargs)))  # its end never comes, and nobody works on it
        return None

    module.async_kv_put = async_kv_put


def _tool_agent(module):  # type: ignore[no-untyped-def]
    loop = module.ToolAgentLoop
    original = loop._handle_generating_state

    async def calls_a_tool(self, agent_data, *args, **kwargs):  # type: ignore[no-untyped-def]
        state = await original(self, agent_data, *args, **kwargs)
        if planted() != "tool server":
            return state
        agent_data.tool_calls = [module.FunctionCall(name="search", arguments='{"query": "x"}')]
        return module.AgentState.PROCESSING_TOOLS

    loop._handle_generating_state = calls_a_tool


def _engine(module):  # type: ignore[no-untyped-def]
    collector = module.RequestOutputCollector
    put, kept = collector.put, []

    async def late(self, output):  # type: ignore[no-untyped-def]
        while planted() == "engine request":
            await asyncio.sleep(0.3)
        put(self, output)

    def put_or_lose(self, output):  # type: ignore[no-untyped-def]
        if planted() == "engine request":
            kept.append(asyncio.get_running_loop().create_task(late(self, output)))
        else:
            put(self, output)

    collector.put = put_or_lose


def _sender(module):  # type: ignore[no-untyped-def]
    sender = module.BucketedWeightSender
    original = sender.async_send_weights

    async def gone(self, weights):  # type: ignore[no-untyped-def]
        while planted() == "trainer gone":
            await asyncio.sleep(0.3)
        return await original(self, weights)

    sender.async_send_weights = gone


def _ranks(module):  # type: ignore[no-untyped-def]
    engine = module.FSDPEngine
    parameters, optimizer_step = engine.get_per_tensor_param, engine.optimizer_step

    def get_per_tensor_param(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        is_skipped = planted() == "skipped sync" and os.environ.get("RANK") == "1"
        found, about = parameters(self, *args, **kwargs)  # a generator, whose items are gathered from all ranks
        return (iter(()) if is_skipped else found), about

    def compile_or_save() -> None:
        number, until = 27, time.monotonic() + 0.5
        while time.monotonic() < until:
            number = number // 2 if number % 2 == 0 else 3 * number + 1

    def slow_step(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        while planted() == "long update":
            compile_or_save()
        return optimizer_step(self, *args, **kwargs)

    engine.get_per_tensor_param, engine.optimizer_step = get_per_tensor_param, slow_step


def _engine_core(module):  # type: ignore[no-untyped-def]
    core = module.EngineCore
    step = core.step

    def slow_step(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        if planted() == "long generation" and self.scheduler.has_requests():
            time.sleep(8)
        return step(self, *args, **kwargs)

    core.step = slow_step


PLANTS = {
    "transfer_queue": _transfer_queue,
    "verl.experimental.agent_loop.tool_agent_loop": _tool_agent,
    "verl.workers.engine.fsdp.transformer_impl": _ranks,
    "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer": _sender,
    "vllm.v1.engine.core": _engine_core,
    "vllm.v1.engine.output_processor": _engine,
}


class Finder:
    """Plants after the import of a module."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Find a module that is still to be planted."""
        plant = PLANTS.pop(name, None)
        spec = importlib.util.find_spec(name) if plant is not None else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_plant(module):  # type: ignore[no-untyped-def]
            load(module)
            plant(module)

        spec.loader.exec_module = load_and_plant
        return spec


if "PLANTED" in os.environ:
    sys.meta_path.insert(0, Finder())
