"""slime's options: our setting words in its keys, release by release, and what its source declares.

Source: slime slime/utils/arguments.py at the tags v0.1.0 (whose setup.py says 0.0.1), v0.2.0, v0.2.4, v0.3.0 and
v0.3.1, and at 624b824a. Nothing of it is run or imported.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from raydebug.trainers.options import declared_defaults
from raydebug.trainers.trainer import Column, Key, later

OF_OTHERS = ("sglang-", "vllm-", "router-")  # beginnings of options that the engine and its router read
_NO_GRAPHS = {"sglang": "sglang-disable-cuda-graph", "vllm": "vllm-enforce-eager"}
_VERSION = re.compile(r"""^\s*version=["'](?P<version>[\w.]+)["']""", re.MULTILINE)
_MEGATRONS: dict[str, Any] = {"read_anyway": True}  # its own source need not be there


# Its model for the engine and the tokenizer, and its data. Source: slime 0.3.1 utils/arguments.py:307, :645, :659.
FILES = {"model": ("hf-checkpoint",), "train_data": ("prompt-data",), "prompt_column": ("input-key",)}


def package_of(program: Path) -> str:
    """Return the package whose `utils.arguments` a program imports: slime, or a fork's name.

    Raises:
        OSError, SyntaxError, ValueError: the file cannot be read or is no Python.
    """
    for node in ast.walk(ast.parse(program.read_bytes())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith(".utils.arguments"):
            return str(node.module).partition(".")[0]
    return "slime"


def read_options(program: Path, package: Path) -> dict[str, object]:
    """Return each option with its default, as the package's files and the program itself add them to argparse.

    Raises:
        OSError, SyntaxError, ValueError: a file cannot be read or is no Python.
    """
    found: dict[str, object] = {}
    for file in (package / "utils" / "arguments.py", *sorted(package.glob("backends/*/arguments.py")), program):
        found |= declared_defaults(file)
    for key in ROLLOUTS["0.3.0"].values():
        if key.read_anyway:
            found.setdefault(key.path, key.default)
    for engine, option in _NO_GRAPHS.items():  # its options are added by code of the engine
        if (package / "backends" / f"{engine}_utils").is_dir():
            found.setdefault(option, False)
    return found


def stated_version(package: Path) -> str | None:
    """Return the version that setup.py beside slime's package states; None for a fork, which counts its own."""
    try:
        found = _VERSION.search((package.parent / "setup.py").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found["version"] if found and package.name == "slime" else None


_0_0_1: Column = {
    "steps": Key("num-rollout"),  # before num-epoch, which is ignored beside it
    "rollout_steps": Key("num-rollout"),
    "response_tokens": Key("rollout-max-response-len", 1024),
    "gpus_per_node": Key("actor-num-gpus-per-node", 8),
    "nodes": Key("actor-num-nodes", 1),
    "train_tensor_parallel": Key("tensor-model-parallel-size", 1, **_MEGATRONS),
    "train_pipeline_parallel": Key("pipeline-model-parallel-size", 1, **_MEGATRONS),
    "train_context_parallel": Key("context-parallel-size", 1, **_MEGATRONS),
    "train_batch_size": Key("rollout-batch-size"),  # prompts of a rollout
    "generation_batch_size": Key("over-sampling-batch-size"),  # not below the rollout's
    "rollouts_per_prompt": Key("n-samples-per-prompt", 1),
    "mini_batch_size": Key("global-batch-size", **_MEGATRONS),  # samples of an update
    "updates_per_step": Key("num-steps-per-rollout"),
    "micro_batch_size": Key("micro-batch-size", 1, **_MEGATRONS),
    "sync_every": Key("update-weights-interval", 1),
    "warmup_steps": Key("lr-warmup-iters", 0, **_MEGATRONS),
    "filter_groups": Key("dynamic-sampling-filter-path", values={"false": "null"}),
    "validate_every": Key("eval-interval", values={"-1": "null"}, **_MEGATRONS),
    "rollouts_beside": Key("eval-interval", **_MEGATRONS),
    "save_every": Key("save-interval", values={"-1": "null"}, **_MEGATRONS),
    "save_to": Key("save", only_with="save", **_MEGATRONS),
    "rollouts_to": Key("save-debug-rollout-data"),
    "details_to": Key("dump-details"),
    "rollouts_kept": Key("save-debug-rollout-data"),
    "rollouts_from": Key("load-debug-rollout-data"),
    "rollouts_only": Key("debug-rollout-only", False),
    "updates_only": Key("debug-train-only", False),
    "resume": Key("start-rollout-id", only_with="load", values={"disable": "0"}),
    "fresh_optimizer": Key("finetune", False, only_with="load", **_MEGATRONS),
    "log_to": Key("use-wandb", False, values={"[console]": "false"}),
    "eager_rollout": Key("sglang-disable-cuda-graph", False, instead_of=("vllm-enforce-eager",)),
}
_0_2_0 = later(_0_0_1, critic_only_steps=Key("num-critic-only-steps", 0))
_0_2_4 = later(_0_2_0, response_tokens=Key("rollout-max-response-len"))
ROLLOUTS: dict[str, Column] = {"0.0.1": _0_0_1, "0.2.0": _0_2_0, "0.2.3": _0_2_4, "0.3.0": _0_2_4}
_OF_ENGINES = ("rollout_steps", "rollouts_beside", "rollouts_kept", "rollouts_from", "rollouts_only", "eager_rollout")
# Its rollouts are those of a file, or its own rollout function needs no engine (a fine-tuning).
UPDATES = {version: later(column, *_OF_ENGINES) for version, column in ROLLOUTS.items()}
