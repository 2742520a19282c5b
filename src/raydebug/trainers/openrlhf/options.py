"""OpenRLHF's options: as argparse reads them, the defaults that its source declares, and the table of keys.

Nothing of OpenRLHF is run or imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from raydebug.trainers.trainer import Column, Key, later

SOURCE_BYTES_MAX = 1024 * 1024  # train_ppo_ray.py of 0.11 has 35 KiB


class Options:
    """The arguments of a command: `--name VALUE`, `--name=VALUE`, or `--name` for a switch. The last one wins.

    Args:
        arguments: the program's own.
        launcher: torchrun's options; OpenRLHF's trainings with Ray have none.
    """

    def __init__(self, arguments: list[str], launcher: list[str]) -> None:
        self.arguments = arguments
        self.launcher = launcher

    def set_keys(self) -> Iterator[str]:
        yield from (name for name, _, _, _ in self._options())

    def get(self, path: str) -> str | None:
        """Return the value of an option, `true` for a switch; None if it is not given."""
        given = [value for name, value, _, _ in self._options() if name == path]
        return given[-1] if given else None

    def replace(self, path: str, value: str | None, *, added: bool) -> None:
        """Set an option where it was, or at the end; None, `null` and a `false` switch remove it."""
        places = [(start, end) for name, _, start, end in self._options() if name == path]
        at = places[0][0] if places else len(self.arguments)
        for start, end in reversed(places):
            del self.arguments[start:end]
        if value not in (None, "null", "false"):
            self.arguments[at:at] = [f"--{path}"] if value == "true" else [f"--{path}", str(value)]

    def is_sweep(self, path: str) -> bool:
        """Return False: argparse takes one value."""
        return False

    def swept_keys(self) -> list[str]:
        """Return none."""
        return []

    def quoted(self, path: Path) -> str:
        """Return the path: argparse reads a value as it is."""
        return str(path)

    def _options(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield name, first value, and the start and end of each option in the arguments."""
        starts = [at for at, argument in enumerate(self.arguments) if argument.startswith("--")]
        for at, following in zip(starts, [*starts[1:], len(self.arguments)], strict=True):
            name, sign, value = self.arguments[at].removeprefix("--").partition("=")
            if sign:
                yield name, value, at, at + 1
            else:
                yield name, self.arguments[at + 1] if at + 1 < following else "true", at, following


def declared_defaults(file: Path) -> dict[str, object]:
    """Return each option that a source file adds to an argparse parser, with its default.

    Raises:
        OSError, SyntaxError, ValueError: the file cannot be read or is no Python.
    """
    text = file.read_bytes()[: SOURCE_BYTES_MAX + 1]
    if len(text) > SOURCE_BYTES_MAX:
        raise ValueError(f"{file} has more than {SOURCE_BYTES_MAX} bytes")
    found: dict[str, object] = {}
    _collect(ast.parse(text), {}, found)
    return found


def _collect(node: ast.AST, known: Mapping[str, str], found: dict[str, object]) -> None:
    """Collect the calls of add_argument; a loop over a tuple of names is followed."""
    if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Tuple):
        for element in node.iter.elts:
            if isinstance(element, ast.Constant) and isinstance(element.value, str):
                for statement in node.body:
                    _collect(statement, {**known, node.target.id: element.value}, found)
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
        name = _text(node.args[0], known) if node.args else None
        if name is not None and name.startswith("--"):
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            is_switch = isinstance(action := given.get("action"), ast.Constant) and action.value == "store_true"
            found[name.removeprefix("--")] = _value(given.get("default"), missing=False if is_switch else None)
    for child in ast.iter_child_nodes(node):
        _collect(child, known, found)


def _text(node: ast.expr, known: Mapping[str, str]) -> str | None:
    """Return a string constant, or an f-string of known names; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
    texts = [known.get(part.id) if isinstance(part, ast.Name) else _text(part, known) for part in parts]
    return None if None in texts else "".join(text for text in texts if text is not None)


def _value(node: ast.expr | None, *, missing: Any) -> Any:
    """Return a literal, or int() of one; None for anything that only a run can compute."""
    if node is None:
        return missing
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int" and node.args:
        inner = _value(node.args[0], missing=None)
        return int(inner) if isinstance(inner, int | float) else None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


# The options of openrlhf.cli.train_ppo_ray, release by release, without their leading dashes.
# Source: OpenRLHF openrlhf/cli/train_ppo_ray.py at the tags v0.8.0, v0.9.0, v0.9.8, v0.9.9 and v0.9.10, at ed62d0e2
# (0.10.2, the first release with dotted names) and at 3c3be623 (0.11.0). `log_to` has no key on purpose: wandb's option
# is its key, and a profile prints what it changes.
_0_8_0: Column = {
    "epochs": Key("num_episodes", 1),
    "prompt_tokens": Key("prompt_max_len", 1024),
    "response_tokens": Key("generate_max_len", 1024),
    "gpus_per_node": Key("actor_num_gpus_per_node", 8),
    "nodes": Key("actor_num_nodes", 1),
    "tensor_parallel": Key("vllm_tensor_parallel_size", 1),
    "train_batch_size": Key("rollout_batch_size", 1024),  # prompts of a step
    "rollouts_per_prompt": Key("n_samples_per_prompt", 1),
    "mini_batch_size": Key("train_batch_size", 128),  # samples of an update
    "micro_batch_size": Key("micro_train_batch_size", 4),
    "rollout_log_prob_micro_batch_size": Key("micro_rollout_batch_size", 8),
    "train_samples": Key("max_samples", 1e8),
    "validate_every": Key("eval_steps", -1),
    "save_every": Key("save_steps", -1),
    "save_to": Key("save_path", "./ckpt"),
    "resume": Key("load_checkpoint", False, values={"disable": "false"}),
    "gpu_memory": Key("vllm_gpu_memory_utilization", 0.95),
    "eager_rollout": Key("enforce_eager", False),
    "compile_actor": Key("deepcompile", False),
    "gradient_checkpointing": Key("gradient_checkpointing", False),
    "offload_optimizer": Key("adam_offload", False),
    "sleep_mode": Key("vllm_enable_sleep", False),
    "model": Key("pretrain"),
    "critic_model": Key("critic_pretrain", only_with="critic"),
    "train_data": Key("prompt_data"),
    "val_data": Key("eval_dataset"),
}
_0_9_0 = later(
    _0_8_0,
    generation_batch_size=Key("vllm_generate_batch_size"),
    attention=Key("attn_implementation", "flash_attention_2"),
)
_0_9_8 = later(_0_9_0, "prompt_tokens", response_tokens=Key("max_new_tokens"))
_0_9_10 = later(_0_9_8, dataloader_workers=Key("dataloader_num_workers", 0))
_0_10_2: Column = {
    "epochs": Key("train.num_episodes", 1),
    "response_tokens": Key("rollout.max_new_tokens"),
    "gpus_per_node": Key("actor.num_gpus_per_node", 8),
    "nodes": Key("actor.num_nodes", 1),
    "tensor_parallel": Key("vllm.tensor_parallel_size", 1),
    "train_batch_size": Key("rollout.batch_size", 1024),
    "generation_batch_size": Key("rollout.vllm_generate_batch_size"),
    "rollouts_per_prompt": Key("rollout.n_samples_per_prompt", 1),
    "mini_batch_size": Key("train.batch_size", 128),
    "micro_batch_size": Key("train.micro_batch_size", 1),
    "rollout_log_prob_micro_batch_size": Key("rollout.micro_batch_size", 1),
    "train_samples": Key("data.max_samples", 100000000),
    "dataloader_workers": Key("data.dataloader_num_workers", 0),
    "validate_every": Key("eval.steps", -1),
    "save_every": Key("ckpt.save_steps", -1),
    "save_to": Key("ckpt.output_dir", "./ckpt"),
    "resume": Key("ckpt.load_enable", False, values={"disable": "false"}),
    "gpu_memory": Key("vllm.gpu_memory_utilization", 0.95),
    "eager_rollout": Key("vllm.enforce_eager", False),
    "compile_actor": Key("ds.deepcompile", False),
    "attention": Key("ds.attn_implementation", "flash_attention_2"),
    "gradient_checkpointing": Key("actor.gradient_checkpointing_enable", False),
    "offload_optimizer": Key("ds.adam_offload", False),
    "sleep_mode": Key("vllm.enable_sleep", False),
    "model": Key("actor.model_name_or_path"),
    "critic_model": Key("critic.model_name_or_path", only_with="critic"),
    "train_data": Key("data.prompt_dataset"),
    "val_data": Key("eval.dataset"),
}

PPO: dict[str, Column] = {
    "0.8.0": _0_8_0,
    "0.9.0": _0_9_0,
    "0.9.8": _0_9_8,
    "0.9.10": _0_9_10,
    "0.10.0": _0_9_10,
    "0.10.2": _0_10_2,
    "0.11.0": _0_10_2,
}
