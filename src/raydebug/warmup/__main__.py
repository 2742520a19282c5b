"""`python -m raydebug.warmup REQUEST`: in the cluster's Python, where the files are; prints one line of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from raydebug.warmup.files import files_of
from raydebug.warmup.pages import room_bytes, warm

MARK = "raydebug-warmup: "
# Where compiled code is kept between runs. Source: triton 3.6 knobs.py, torch 2.11 _inductor cache_dir_utils.py,
# vllm 0.24 envs.py, flashinfer 0.6 jit/env.py.
CACHES = {
    "Triton": ("TRITON_CACHE_DIR", "~/.triton/cache"),
    "torch.compile": ("TORCHINDUCTOR_CACHE_DIR", None),
    "vLLM": ("VLLM_CACHE_ROOT", "~/.cache/vllm"),
    "FlashInfer": ("FLASHINFER_WORKSPACE_BASE", "~/.cache/flashinfer"),
}


def main() -> None:
    """Read ahead what the command names, and print what became of it."""
    request = json.loads(sys.argv[1])
    print(MARK + json.dumps(answer(request)), flush=True)  # noqa: T201 - this is the answer


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return what was read, how long it took, and which caches there are; or why the command is not understood.

    Args:
        request: `command`, the argv; `profile`, laid over it first, or None.
    """
    from raydebug.check.inside.config import CannotCompose, compose

    try:
        config = compose(request)
    except CannotCompose as refusal:
        return {"refused": refusal.message}
    files = files_of(config)
    room = room_bytes()
    started = time.monotonic()
    done = warm(files, room)
    seconds = time.monotonic() - started
    return {"files": [asdict(one) for one in done], "seconds": seconds, "room_bytes": room, "caches": list(caches())}


def caches() -> Any:
    """Yield the caches of compiled code: name, folder, bytes, and whether the folder is there."""
    for name, (variable, default) in CACHES.items():
        said = os.environ.get(variable) or default
        if said is None:
            continue
        folder = Path(said).expanduser()
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else 0
        yield {"name": name, "folder": str(folder), "bytes": size, "exists": folder.is_dir()}


if __name__ == "__main__":
    main()
