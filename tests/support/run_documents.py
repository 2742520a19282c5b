"""Documents of runs (run.json, version 1) for the tests of their page: failed, quick, huge, and hostile."""

from __future__ import annotations

import math
import random
from typing import Any

from raydebug.runs.record import NODE

Document = dict[str, Any]
STARTED = 1_790_000_000.0
SAMPLE_S = 1.0


def failed_run() -> Document:
    """A GRPO training on two GPUs that paused three times and died of a NaN in its ninth step."""
    rng = random.Random(7)
    phases = [("start", 0.0, 8.4), ("model load", 8.4, 41.9), ("engine start", 39.0, 71.2)]
    clock, steps = 74.0, []
    for step in range(1, 10):
        parts = (("rollout", 9.0 + rng.random()), ("reward", 2.1 + rng.random()), ("update", 5.2 + rng.random()))
        start = clock
        for name, took in parts:
            wait = 64.0 if step == 3 and name == "reward" else 21.5 if step == 6 and name == "update" else 0.0
            phases.append((name, clock, clock + took + wait))
            clock += took + wait
        metrics = {
            "critic/rewards/mean": 0.1 + 0.07 * step + 0.03 * rng.random(),
            "critic/rewards/max": 1.0,
            "actor/pg_loss": math.nan if step >= 8 else 0.4 / step - 0.05 * rng.random(),
            "actor/entropy": 2.3 - 0.11 * step,
            "actor/kl_loss": 0.001 * step**2,
            "actor/grad_norm": math.inf if step == 9 else 0.8 + rng.random(),
            "actor/lr": 1e-6,
            "response_length/mean": 180.0 + 12 * step,
            "perf/throughput": 812.5 + 40 * rng.random(),
            "timing_s/gen": parts[0][1],
            "timing_s/reward": parts[1][1],
            "timing_s/update_actor": parts[2][1],
            "training/global_step": float(step),
            "perf/max_memory_allocated_gb": 61.2,
        }
        steps.append({"step": step, "end_s": clock, "seconds": clock - start, "metrics": metrics})
        clock += 0.4
    end = clock + 3.0
    listed = [{"name": name, "start_s": start, "end_s": stop} for name, start, stop in phases]
    listed.append({"name": "checkpoint", "start_s": clock, "end_s": None})
    at = steps[2]["end_s"] - 70, steps[5]["end_s"] - 24
    crash = {"kind": "post-mortem", "exception": "FloatingPointError: loss is nan", "end_s": None}
    pauses = [
        _pause(1, "reward.py:41 score", "RewardManager rank 0 pid 7318", at[0], at[0] + 63.8),
        _pause(2, "reward.py:41 score", "RewardManager rank 1 pid 7321", at[0] + 0.3, at[0] + 40.1),
        _pause(3, "dp_actor.py:402 update_policy", "WorkerDict rank 0 pid 7140", at[1], at[1] + 21.4),
        {**_pause(4, "dp_actor.py:418 update_policy", "WorkerDict rank 1 pid 7141", end - 14, None), **crash},
    ]
    processes = [
        ("WorkerDict rank 0 pid 7140", 21000, 12),
        ("WorkerDict rank 1 pid 7141", 20800, 12),
        ("vLLM engine pid 7402", 14200, 39),
        ("driver pid 6990", 2900, 2),
        ("raylet pid 6801", 640, 0),
        ("gcs_server pid 6790", 310, 0),
        ("RewardManager pid 7318", 980, 70),
        ("RewardManager pid 7321", 970, 70),
        ("dashboard agent pid 6850", 260, 1),
    ]
    memory = [
        {"process": name, "node": "f1633e03 10.0.0.4", "samples": _grows(size, since, end, rng)}
        for name, size, since in processes
    ]
    memory += [
        {"process": "raylet pid 411", "node": "a92c17d0 10.0.0.5", "samples": _grows(610, 3, end, rng)},
        {"process": "RewardModel pid 520", "node": "a92c17d0 10.0.0.5", "samples": _grows(9100, 20, end, rng)},
    ]
    memory.append({"process": NODE, "node": "f1633e03 10.0.0.4", "samples": _grows(69_500, 0, end, rng)})
    overrides = [
        "data.train_files=/data/gsm8k/train.parquet", "data.train_batch_size=1024", "data.max_prompt_length=512",
        "data.max_response_length=1024", "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct",
        "actor_rollout_ref.actor.optim.lr=1e-6", "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.6", "actor_rollout_ref.rollout.n=5",
        "algorithm.adv_estimator=grpo", "trainer.n_gpus_per_node=2", "trainer.nnodes=1",
        "trainer.project_name=gsm8k grpo", "trainer.total_epochs=15",
    ]  # fmt: skip
    return {
        "version": 1,
        "kind": "run",
        "id": "raydebug-062956-f43ea0",
        "command": ["python", "-m", "verl.trainer.main_ppo", *overrides],
        "cluster": {"name": "default", "kind": "compose", "flavour": "cuda", "debugger": "post-mortem"},
        "profile": "debug",
        "changes": [
            {
                "key": "trainer.total_training_steps", "old": None, "new": 2,
                "why": "the second step needs what the first one learned",
            },
            {"key": "data.train_batch_size", "old": 1024, "new": 4, "why": "four prompts"},
            {"key": "actor_rollout_ref.rollout.enforce_eager", "old": False, "new": True, "why": "no graph capture"},
            {"key": "trainer.save_freq", "old": 20, "new": -1, "why": "nothing is saved"},
        ],
        "variables": {
            "RAY_DEBUG": "1", "RAY_DEBUG_POST_MORTEM": "1", "VERL_PLATFORM": "cuda", "WANDB_API_KEY": "x" * 40,
            "NCCL_TIMEOUT": "86400", "VLLM_USE_V1": "1",
        },
        "lock": {"flavour": "cuda", "sha256": "sha256:" + "9f2c" * 16},
        "started": STARTED,
        "ended": STARTED + end,
        "status": "failed",
        "exit_code": 1,
        "first_error": {
            "kind": "FloatingPointError", "text": "loss is nan at step 9 (grad_norm=inf)",
            "who": "WorkerDict.update_actor, pid 7141", "place": "/workspace/verl/actor/dp_actor.py:418",
        },
        "phases": listed,
        "steps": steps,
        "memory": memory,
        "gpus": [_gpu(index, end, rng) for index in range(2)],
        "pauses": pauses,
        "findings": [
            {
                "stage": "engine", "code": "engine.memory-fraction", "severity": "warning",
                "what": "gpu_memory_utilization=0.6 leaves 2.1 GiB less than the actor's update took in the last run",
                "why": "the engine keeps 47.5 GiB of 79.2 GiB while the actor's peak was 33.8 GiB",
                "fix": "actor_rollout_ref.rollout.gpu_memory_utilization=0.5",
            },
            {
                "stage": "train", "code": "train.loss-nan", "severity": "error",
                "what": "the loss is NaN from step 8 on",
                "why": "actor/grad_norm rose to inf; the update went on with it",
                "fix": "actor_rollout_ref.actor.grad_clip=1.0, and look at rank 1: raydebug attach 4",
            },
        ],
        "log": "job.log",
    }  # fmt: skip


def quick_run() -> Document:
    """The same training, mended: it succeeded, with a smaller share for the engine and no pause."""
    document = failed_run()
    factor = 0.82
    ended = [step for step in document["steps"] if step["step"] not in (3, 6)]
    clock = 61.0
    phases = [
        {"name": "start", "start_s": 0.0, "end_s": 8.1},
        {"name": "model load", "start_s": 8.1, "end_s": 40.2},
        {"name": "engine start", "start_s": 38.0, "end_s": 59.9},
    ]
    steps = []
    for number, step in enumerate(ended, start=1):
        took = step["seconds"] * factor
        phases += [
            {"name": "rollout", "start_s": clock, "end_s": clock + 0.5 * took},
            {"name": "reward", "start_s": clock + 0.5 * took, "end_s": clock + 0.65 * took},
            {"name": "update", "start_s": clock + 0.65 * took, "end_s": clock + took},
        ]
        clock += took
        metrics = {**step["metrics"], "actor/pg_loss": 0.41 / number, "actor/grad_norm": 0.9}
        steps.append({"step": number, "end_s": clock, "seconds": took, "metrics": metrics})
    phases.append({"name": "export", "start_s": clock, "end_s": clock + 6.0})
    rng = random.Random(8)
    command = [word.replace("utilization=0.6", "utilization=0.5") for word in document["command"]]
    return document | {
        "id": "raydebug-071204-0b17d4",
        "command": [*command, "actor_rollout_ref.actor.grad_clip=1.0"],
        "started": STARTED + 2400,
        "ended": STARTED + 2400 + clock + 6.0,
        "status": "succeeded",
        "exit_code": 0,
        "first_error": None,
        "phases": phases,
        "steps": steps,
        "pauses": [],
        "findings": [],
        "variables": {**document["variables"], "RAY_DEBUG_POST_MORTEM": "0"},
        "changes": document["changes"][:3],
        "memory": [
            {**one, "samples": [[at, 0.9 * mib] for at, mib in one["samples"] if at < clock]}
            for one in document["memory"]
        ],
        "gpus": [_gpu(index, clock, rng) for index in range(2)],
    }


def huge_run(pauses: int = 5_000, steps: int = 10_000) -> Document:
    """A run of a day with many pauses and steps, samples of many processes each second of its first hours."""
    rng = random.Random(9)
    document = failed_run()
    length = 86_000.0
    every = length / steps
    listed = []
    for index in range(steps):
        spike = 40.0 if index == 6_173 else 0.0
        metrics = {
            "reward/mean": math.tanh(index / steps * 3) + rng.gauss(0, 0.05),
            "loss": 2.0 / (1 + index / 500) + rng.gauss(0, 0.02),
        }
        metrics |= {f"timing_s/part_{part}": rng.random() for part in range(4)}
        took = every * (0.9 + 0.1 * rng.random()) + spike
        listed.append({"step": index + 1, "end_s": (index + 1) * every, "seconds": took, "metrics": metrics})
    places = ["train.py:7 Trainer.update", "reward.py:41 score", "dp_actor.py:402 update_policy"]
    waits = []
    for index in range(pauses):
        start = length * rng.random()
        place = rng.choice(places)
        waits.append(
            _pause(
                index + 1,
                place,
                f"rank {index % 64} Worker pid {7000 + index % 64}",
                start,
                start + rng.expovariate(0.5),
            )
        )
    phases = [
        {"name": name, "start_s": index * every + begin * every, "end_s": index * every + end * every}
        for index in range(steps)
        for name, begin, end in (("rollout", 0.0, 0.55), ("reward", 0.55, 0.65), ("update", 0.65, 0.95))
    ]
    memory = [
        {
            "process": f"Worker rank {rank} pid {7000 + rank}",
            "node": f"node {rank % 4}",
            "samples": [[10.0 * i, 9000 + 40 * rank + 300 * math.sin(i / 50 + rank)] for i in range(8600)],
        }
        for rank in range(32)
    ]
    return document | {
        "id": "raydebug-huge", "started": STARTED, "ended": STARTED + length, "steps": listed, "pauses": waits,
        "phases": phases, "memory": memory, "gpus": [],
    }  # fmt: skip


def hostile_run() -> Document:
    """What a job must not reach the page with: markup, terminal escapes, text that turns round, paths, wrong types."""
    evil = '<script>document.title="owned"</script><img src=x onerror=alert(1)>" onload="x\x1b[31mred\u202egnp.exe\x00'
    return {
        "version": 1,
        "kind": evil,
        "id": evil,
        "command": ["python", evil, "--api-key", "hunter2", "auth_token=hunter2", None, 3],
        "cluster": {"name": evil, "kind": evil, "flavour": evil, "debugger": evil},
        "profile": evil,
        "changes": [
            {"key": evil, "old": evil, "new": [evil], "why": evil},
            "no mapping",
            {"key": "x.secret", "old": "hunter2"},
        ],
        "variables": {evil: evil, "MY_PASSWORD": "hunter2", "HF_TOKEN": "hunter2"},
        "lock": {"flavour": evil, "sha256": evil},
        "started": 1e300,
        "ended": -5,
        "status": evil,
        "exit_code": "three",
        "first_error": {"kind": evil, "text": evil, "who": evil, "place": evil},
        "phases": [
            {"name": evil, "start_s": 1.0, "end_s": 0.5},
            {"name": "no start"},
            {"name": 7, "start_s": -1},
            None,
        ],
        "steps": [
            {
                "step": 1, "end_s": 2.0, "seconds": 1.0,
                "metrics": {evil: 1.0, "strict": "NaN", "none": None, "text": "a"},
            },
            {"step": "x", "end_s": 2.0, "seconds": 1.0},
            {"step": 2, "end_s": math.nan, "seconds": 1},
        ],
        "memory": [
            {"process": evil, "node": evil, "samples": [[0, 1], [1], None, ["a", 2], [3, math.nan], [2, 10**400]]},
            {"process": "none", "node": None, "samples": None},
        ],
        "gpus": [
            {"name": evil, "node": evil, "total_mib": 0, "samples": [[0, 1, None], [1, None, 50], [2, None, None]]}
        ],
        "pauses": [
            {"id": evil, "where": evil, "kind": evil, "who": evil, "exception": evil, "start_s": 0.5, "end_s": None}
        ],
        "findings": [{"stage": evil, "code": evil, "severity": evil, "what": evil, "why": evil, "fix": evil}],
        "log": "javascript:alert(1)",
    }  # fmt: skip


def _pause(number: int, where: str, who: str, start: float, end: float | None) -> Document:
    return {
        "id": str(number), "where": where, "kind": "breakpoint", "who": who, "exception": None, "start_s": start,
        "end_s": end,
    }  # fmt: skip


def _grows(size: float, since: float, end: float, rng: random.Random) -> list[list[float]]:
    """Return samples of a process that starts, grows to its size and wavers."""
    samples, at = [], float(since)
    while at < end:
        part = 1 - math.exp(-(at - since + 1) / 12)
        samples.append([at, size * part * (1 + 0.015 * rng.random())])
        at += SAMPLE_S
    return samples


def _gpu(index: int, end: float, rng: random.Random) -> Document:
    samples = []
    for at in range(0, int(end), 1):
        used = 0.0 if at < 9 else min(68_000.0, 2100.0 * (at - 9)) + 2500 * (at % 17 > 9)
        busy = 0.0 if at < 9 else 96 * (at % 17 > 9) + 8 * rng.random()
        samples.append([float(at), used, min(100.0, busy)])
    return {
        "name": f"GPU {index} NVIDIA H100 80GB HBM3", "node": "f1633e03 10.0.0.4", "total_mib": 81559.0,
        "samples": samples,
    }  # fmt: skip
