"""Models in the cache of the Hugging Face Hub, by its folders alone; nothing is fetched."""

from __future__ import annotations

import os
import re
from pathlib import Path

_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


def is_hub_name(text: str) -> bool:
    """Return whether a text can be a model's name on the Hub."""
    return _NAME.fullmatch(text) is not None


def cached_folder(name: str) -> Path | None:
    """Return the folder of a model's main revision in the Hub's cache; None if its config.json is not there.

    Source: huggingface_hub 1.33 constants.py (HF_HUB_CACHE), file_download.py try_to_load_from_cache.
    """
    model = hub_cache() / f"models--{name.replace('/', '--')}"
    try:
        commit = (model / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    folder = model / "snapshots" / commit
    return folder if _COMMIT.fullmatch(commit) and (folder / "config.json").is_file() else None


def model_folder(name: str) -> Path | None:
    """Return the folder of a model, or its snapshot in the Hub's cache; None if it is not here."""
    folder = Path(os.path.expanduser(name))  # noqa: PTH111 - as verl does
    return folder if folder.is_dir() else cached_folder(name) if is_hub_name(name) else None


def hub_cache() -> Path:
    """Return the folder of the Hub's cache."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")  # noqa: PTH118
    cache = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expandvars(os.path.expanduser(cache)))  # noqa: PTH111
