"""What a run of a command depends on: how many GPUs it asks for, and which files it reads."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from raydebug.check.inside.config import CannotCompose, compose, read_by
from raydebug.check.inside.data import paths_of

SOURCES_MAX = 500


def gather(request: dict[str, Any]) -> dict[str, Any]:
    """Return the plan of a run, or Hydra's refusal."""
    try:
        config = compose(request)
    except CannotCompose as refusal:
        return refusal.as_facts()
    data, model = config["data"], config["actor_rollout_ref"]["model"]
    reward = (config.get("reward", {}).get("custom_reward_function") or {}).get("path")
    files = [*paths_of(data.get("train_files")), *paths_of(data.get("val_files"))]
    return {
        "gpus": config["trainer"]["n_gpus_per_node"] * config["trainer"]["nnodes"],
        "read": read_by(request, *files, reward, model["path"], model.get("tokenizer_path"), *_sources()),
    }


def _sources() -> list[Path]:
    """Return the Python files of the folder that a command runs in: any of them may be a part of it."""
    found = (
        p for p in Path.cwd().rglob("*.py") if not any(part.startswith(".") or part in NOT_OWN for part in p.parts)
    )
    return sorted(islice(found, SOURCES_MAX))


NOT_OWN = {"site-packages", "node_modules", "__pycache__"}
