"""Snapshots for tests of the reading side, made only from the description of the format (protocol/snapshot.py)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from raydebug.protocol.snapshot import FORMAT, SUFFIX, VERSION

Document = dict[str, Any]
ESCAPE = "\x1b]0;owned\x07\u202egnp.exe"
SOURCE = """\
def reward(batch, config, scores):
    weights = batch.weights
    total = 0.0
    for score in scores:
        total += score / weights[0]
    return total
""".splitlines()
TENSOR = {
    "shape": [4, 8], "dtype": "torch.float32", "device": "cpu", "stride": [8, 1], "requires_grad": True, "bytes": 128,
    "storage": "s1", "sampled": 32, "nan": 3, "inf": 0, "min": -1.5, "max": 2.0, "mean": 0.25,
    "first": ["nan", 0.5, 1.0],
}  # fmt: skip


class Saved:
    """Values of a snapshot under construction; each method adds one and returns its index."""

    def __init__(self) -> None:
        self.values: list[Document] = []

    def add(self, **value: Any) -> int:
        """Add a value with these fields."""
        self.values.append(value)
        return len(self.values) - 1

    def of(self, value: Any) -> int:
        """Add a plain Python value and the values in it."""
        kind = type(value).__name__
        if isinstance(value, str):
            return self.add(type="str", text=value, length=len(value))
        if isinstance(value, dict):
            pairs = [[self.of(key), self.of(item)] for key, item in value.items()]
            return self.add(type=kind, length=len(value), pairs=pairs)
        if isinstance(value, list | tuple | set):
            return self.add(type=kind, length=len(value), items=[self.of(one) for one in value])
        return self.add(type=kind, text=repr(value))

    def config(self, value: Any) -> int:
        """Add a value as omegaconf 2.3 keeps it."""
        if not isinstance(value, dict):
            attributes = {"_metadata": self.add(type="omegaconf.base.Metadata"), "_val": self.of(value)}
            return self.add(type="omegaconf.nodes.AnyNode", attributes=attributes)
        pairs = [[self.of(key), self.config(item)] for key, item in value.items()]
        attributes = {"_parent": self.of(None), "_content": self.add(type="dict", length=len(pairs), pairs=pairs)}
        return self.add(type="omegaconf.dictconfig.DictConfig", attributes=attributes)


def crashed_reward(**summary: Any) -> Document:
    """A reward function that divides by zero, called by a task; a KeyError came before it."""
    saved = Saved()
    hidden = {**TENSOR, "device": "cuda:0", "unread": "reading it would wait for the GPU", "storage": "s2"}
    for name in ("sampled", "nan", "inf", "min", "max", "mean", "first"):
        hidden.pop(name)
    weights = saved.add(type="torch.Tensor", tensor={**TENSOR})
    view = saved.add(type="torch.nn.parameter.Parameter", tensor={**TENSOR, "shape": [32], "stride": [1]})
    batch = saved.add(type="verl.protocol.Batch", attributes={"weights": weights, "name": saved.of("gsm8k")})
    node = saved.add(type="dict", length=2)
    saved.values[node]["pairs"] = [
        [saved.of("self"), node],
        [saved.of("deep"), saved.add(type="list", length=3, cut="depth")],
    ]
    config = saved.config({"lr": 1e-6, "actor": {"clip": 0.2}})
    inner = {
        "batch": batch, "config": config, "scores": saved.of([0.5, 1.5]), "weights": weights, "view": view,
        "total": saved.of(0.0), "score": saved.of(0.5),
    }  # fmt: skip
    outer = {
        "many": saved.add(type="list", length=1000, items=[saved.of(n) for n in range(3)]),
        "long": saved.add(type="str", text="a" * 100, length=5_000_000), "token": saved.add(type="str", redacted=True),
        "shown": saved.of(ESCAPE), "cycle": node, "numpy_str": saved.add(type="numpy.str_", text="gsm8k", length=5),
        "data": saved.add(type="bytes", text="b'ab'", length=2), "gpu": saved.add(type="torch.Tensor", tensor=hidden),
        "how": saved.add(type="function", text="reward"), ESCAPE: saved.of((1,)),
    }  # fmt: skip
    frames = [
        {"file": "/workspace/reward.py", "line": 45, "function": "reward", "arguments": ["batch", "config", "scores"],
         "locals": inner, "source_from": 41, "source": SOURCE},
        {"file": "/workspace/train.py", "line": 12, "function": "Trainer.step", "arguments": [], "locals": outer,
         "source_from": 12, "source": ["    loss = reward(batch, config, scores)"]},
        {"file": "/venv/site-packages/ray/_private/worker.py", "line": 900, "function": "main_loop"},
        {"file": "/workspace/table.py", "line": 3, "function": "look_up", "arguments": ["key"],
         "locals": {"key": saved.of("gsm8k")}, "source_from": 2, "source": ["def look_up(key):", "    return {}[key]"]},
    ]  # fmt: skip
    return {
        "format": FORMAT,
        "version": VERSION,
        "summary": {
            "id": "c1", "job": "raydebug-0629", "kind": "crash", "exception": "ZeroDivisionError",
            "message": "float division by zero", "file": "/workspace/reward.py", "line": 45, "function": "reward",
            "rank": 0, "pid": 7318, "actor": "Judge math", "at": 1_790_000_000.0, "same": "z", **summary,
        },
        "process": {"pid": 7318, "ip": "10.0.0.4", "node_id": "f1633e03aa", "job_id": "04000000", "world": 2},
        "thread": "MainThread",
        "step": 12,
        "argv": ["python", "-m", "verl.trainer.main_ppo"],
        "versions": {"python": "3.11.7", "raydebug": "0.1", "torch": "2.13.0"},
        "exceptions": [
            {"type": "ZeroDivisionError", "text": "float division by zero", "relation": "raised", "frames": [0, 1, 2]},
            {"type": "KeyError", "text": "'gsm8k'", "relation": "cause", "parent": 0, "frames": [3]},
            {"type": "ray.exceptions.RayTaskError", "text": "look_up()", "relation": "context", "parent": 1,
             "remote": f"Traceback of the other node {ESCAPE}"},
        ],
        "frames": frames,
        "values": saved.values,
    }  # fmt: skip


def write(folder: Path, document: object, name: str = "c1") -> Path:
    """Write a document as a snapshot file of a run's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}{SUFFIX}"
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path
