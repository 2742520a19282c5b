"""What a run of a command depends on: how many GPUs it asks for, and which files it reads."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from raydebug.check.probes import Facts
from raydebug.check.probes.config import compose, read_by
from raydebug.check.probes.data import paths_of
from raydebug.trainers.config import CannotCompose

SOURCES_MAX = 500


def gather(request: Facts) -> Facts:
    """Return the GPUs and, `with_files`, the files of a run; or the refusal of the trainer's library."""
    try:
        _, config = compose(request)
    except CannotCompose as refusal:
        return refusal.as_facts()
    if not request["with_files"]:
        return {"gpus": config.ranks}
    reward = config.get("reward_file")
    files = [path for word in ("train_data", "val_data") for path in paths_of(config.get(word))]
    read = read_by(request, *files, reward, config.get("model"), config.get("tokenizer"), *_sources())
    return {"gpus": config.ranks, "read": read}


def _sources() -> list[Path]:
    """Return the Python files of the folder that a command runs in: any of them may be a part of it."""
    found = (
        p for p in Path.cwd().rglob("*.py") if not any(part.startswith(".") or part in NOT_OWN for part in p.parts)
    )
    return sorted(islice(found, SOURCES_MAX))


NOT_OWN = {"site-packages", "node_modules", "__pycache__"}
