"""Which files a training command will read: its model's shards, its data. Asked of the config that it amounts to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Where a config names what is read from disk at the start. Source: verl 0.9.1 _generated_ppo_trainer.yaml.
MODELS = ("actor_rollout_ref.model.path", "critic.model.path", "reward.reward_model.model_path")
DATA = ("data.train_files", "data.val_files")
# A checkpoint may hold several formats of the same weights: what transformers and vLLM load comes first.
WEIGHTS = (("*.safetensors",), ("pytorch_model*.bin", "*.pt", "*.pth"))
SMALL = ("*.json", "*.model", "*.txt", "*.jinja", "*.py")


def files_of(config: Mapping[str, Any]) -> list[Path]:
    """Return the files that exist of those that a config names, models first, each once.

    Args:
        config: the trainer's, with the command's overrides.
    """
    found: dict[Path, None] = {}
    for key in MODELS:
        path = value_at(config, key)
        if isinstance(path, str) and path and _is_used(config, key):
            found.update(dict.fromkeys(_model_files(path)))
    for key in DATA:
        named = value_at(config, key)
        for path in named if isinstance(named, list) else [named]:
            if isinstance(path, str) and Path(path).expanduser().is_file():
                found[Path(path).expanduser().resolve()] = None
    return list(found)


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """Return what a dotted key names; None where there is nothing."""
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return None
        node = node[part]
    return node


def _is_used(config: Mapping[str, Any], key: str) -> bool:
    if key.startswith("critic."):
        # Source: verl 0.9.1 trainer/ppo/utils.py need_critic.
        asked = value_at(config, "critic.enable")
        return bool(asked) if asked is not None else value_at(config, "algorithm.adv_estimator") == "gae"
    if key.startswith("reward."):
        return bool(value_at(config, "reward.reward_model.enable"))
    return True


def _model_files(path: str) -> Iterator[Path]:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        snapshot = _snapshot(path)
        if snapshot is None:
            return
        folder = snapshot
    for pattern in SMALL:
        yield from (file.resolve() for file in sorted(folder.glob(pattern)) if file.is_file())
    for patterns in WEIGHTS:
        shards = sorted(file.resolve() for pattern in patterns for file in folder.glob(pattern) if file.is_file())
        if shards:
            yield from shards
            return


def _snapshot(name: str) -> Path | None:
    """Return the folder of a model of the Hub in this user's cache."""
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # a path that does not exist is no name of the Hub
        return None
    return Path(cached).parent if isinstance(cached, str) else None
