"""EasyR1's training, `verl.trainer.main`: verl's first fork with a config of its own, of dataclasses and one YAML file.

Its arguments are OmegaConf's: `config=FILE key=value`. Source: EasyR1 b44b311b verl/trainer/main.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from raydebug.settings.flavours import installed_version
from raydebug.trainers.config import find_program_file
from raydebug.trainers.trainer import Column, Installed, Key, Program

_ACTOR, _CRITIC, _ROLLOUT = "worker.actor", "worker.critic", "worker.rollout"
_ROOT = "PPOConfig"  # the dataclass of the whole config
_VERSION = re.compile(r"^__version__ = [\"'](\d+(?:\.\d+)+)", re.MULTILINE)
SOURCE_BYTES_MAX, FILES_MAX, DEPTH_MAX = 256 * 1024, 100, 8

# Source: EasyR1 b44b311b (0.3.3) verl/trainer/config.py and verl/workers/*/config.py; batch rules:
# verl/trainer/ray_trainer.py:211-227, verl/workers/fsdp_workers.py:143-155.
_0_1_0: Column = {
    "steps": Key("trainer.max_steps"),
    "epochs": Key("trainer.total_epochs", 15),
    "prompt_tokens": Key("data.max_prompt_length", 512),
    "response_tokens": Key("data.max_response_length", 512),
    "gpus_per_node": Key("trainer.n_gpus_per_node", 8),
    "nodes": Key("trainer.nnodes", 1),
    "tensor_parallel": Key(f"{_ROLLOUT}.tensor_parallel_size", 2),
    "sequence_parallel": Key(f"{_ACTOR}.ulysses_size", 1, instead_of=(f"{_ACTOR}.ulysses_sequence_parallel_size",)),
    "train_batch_size": Key("data.rollout_batch_size", 512),
    "generation_batch_size": Key("data.mini_rollout_batch_size", listed_only=True),
    "rollouts_per_prompt": Key(f"{_ROLLOUT}.n", 1),
    "mini_batch_size": Key(f"{_ACTOR}.global_batch_size", 256),
    "micro_batch_size": Key(f"{_ACTOR}.micro_batch_size_per_device_for_update", 4),
    "rollout_log_prob_micro_batch_size": Key(f"{_ACTOR}.micro_batch_size_per_device_for_experience", 16),
    "critic_mini_batch_size": Key(f"{_CRITIC}.global_batch_size", 256, only_with="critic"),
    "critic_micro_batch_size": Key(f"{_CRITIC}.micro_batch_size_per_device_for_update", 4, only_with="critic"),
    "filter_groups": Key("algorithm.online_filtering", False, listed_only=True),
    "validate_first": Key("trainer.val_before_train", True),
    "validate_only": Key("trainer.val_only", False),
    "validate_every": Key("trainer.val_freq", -1),
    "save_every": Key("trainer.save_freq", -1),
    "resume": Key("trainer.find_last_checkpoint", True, listed_only=True, values={"disable": "false"}),
    "log_to": Key("trainer.logger", ("console", "wandb")),
    "gpu_memory": Key(f"{_ROLLOUT}.gpu_memory_utilization", 0.6),
    "eager_rollout": Key(f"{_ROLLOUT}.enforce_eager", False),
    "compile_actor": Key(f"{_ACTOR}.use_torch_compile", True),
    "gradient_checkpointing": Key(f"{_ACTOR}.model.enable_gradient_checkpointing", True),
    "offload_parameters": Key(f"{_ACTOR}.offload.offload_params", False),
    "offload_optimizer": Key(f"{_ACTOR}.offload.offload_optimizer", False),
    "rollout_model_tokens": Key(f"{_ROLLOUT}.max_model_len"),
    "rollout_batched_tokens": Key(f"{_ROLLOUT}.max_num_batched_tokens", 8192),
    "image_pixels": Key("data.max_pixels", 4194304),
    "image_pixels_least": Key("data.min_pixels", 262144),
    "model": Key(f"{_ACTOR}.model.model_path"),
    "critic_model": Key(f"{_CRITIC}.model.model_path", only_with="critic"),
    "tokenizer": Key(f"{_ACTOR}.model.tokenizer_path"),
    "train_data": Key("data.train_files", ""),
    "val_data": Key("data.val_files", ""),
    "prompt_column": Key("data.prompt_key", "prompt"),
}
EASYR1: dict[str, Column] = {"0.1.0": _0_1_0, "0.2.0": _0_1_0, "0.3.0": _0_1_0}


def read_config(program: Program, argv: Sequence[str], *, folder: Path, search: Sequence[str]) -> Installed:
    """Read EasyR1's version, the defaults of its dataclasses, and the YAML file that the command names."""
    package = program.module.partition(".")[0]
    file = find_program_file(program.module, argv[program.arguments_at - 1], folder, search)
    if file is None:
        return Installed(installed_version(package), None, f"{program.module} is not installed here")
    root = file.parent.parent
    try:
        found = _VERSION.search(_text(root / "__init__.py"))
        version = found[1] if found else None
    except (OSError, ValueError):
        version = None
    try:
        values = dict(declared_fields(root))
        named = [argument.partition("=")[2] for argument in argv[program.arguments_at :] if argument[:7] == "config="]
        if named:
            values |= _leaves(folder / named[-1])
        return Installed(version, values)
    except (OSError, SyntaxError, ValueError) as failure:
        return Installed(version, None, str(failure))


def declared_fields(package: Path) -> Iterator[tuple[str, Any]]:
    """Yield each key of the config's dataclasses with its default; nothing is imported.

    Raises:
        OSError, SyntaxError, ValueError: a source cannot be read, or has no such dataclass.
    """
    classes: dict[str, list[ast.AnnAssign]] = {}
    sources = [package / "trainer" / "config.py", *sorted(package.glob("workers/**/config.py"))]
    for source in sources[:FILES_MAX]:
        for node in ast.parse(_text(source)).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name] = [it for it in node.body if isinstance(it, ast.AnnAssign)]
    if _ROOT not in classes:
        raise ValueError(f"{package} has no dataclass {_ROOT}")
    yield from _fields(_ROOT, "", classes, 0)


def _fields(name: str, above: str, classes: Mapping[str, list[ast.AnnAssign]], depth: int) -> Iterator[tuple[str, Any]]:
    if depth > DEPTH_MAX:
        raise ValueError(f"more than {DEPTH_MAX} dataclasses are in one another, {name} among them")
    for declared in classes[name]:
        path = f"{above}{ast.unparse(declared.target)}"
        kind = ast.unparse(declared.annotation)
        if kind in classes:
            yield from _fields(kind, f"{path}.", classes, depth + 1)
        elif "init=False" not in (ast.unparse(declared.value) if declared.value else ""):  # not the user's to set
            try:
                yield path, ast.literal_eval(declared.value) if declared.value else None
            except ValueError:  # field(default_factory=...)
                yield path, None


def _leaves(file: Path) -> dict[str, Any]:
    """Return the keys of a YAML file.

    Raises:
        OSError, ValueError: it cannot be read, or is no mapping.
    """
    import yaml

    from raydebug.trainers.verl.config_files import NotComposed, leaves, read_yaml

    try:
        return dict(leaves(read_yaml(file)[1]))
    except (NotComposed, yaml.YAMLError) as failure:
        raise ValueError(str(failure)) from failure


def _text(file: Path) -> str:
    data = file.read_bytes()[: SOURCE_BYTES_MAX + 1]
    if len(data) > SOURCE_BYTES_MAX:
        raise ValueError(f"{file} has more than {SOURCE_BYTES_MAX} bytes")
    return data.decode("utf-8", "replace")
