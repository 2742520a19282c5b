"""What the weight files of a model hold, by their headers: no weight is read, whatever their size.

Source of the format: safetensors 0.8, "Format" of its README: 8 bytes of length, JSON, then the tensors.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
HEADER_BYTES_MAX = 100_000_000  # safetensors' own limit
POINTER = b"version https://git-lfs.github.com"
BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
        "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}  # fmt: skip
EMBEDDING, LAYERS = "model.embed_tokens.weight", "model.layers."


def look(folder: Path) -> dict[str, Any]:
    """Return the shards of a model's folder, each with what is wrong with it, and the sums over the good ones."""
    promised: dict[str, str] = {}
    index = folder / INDEX
    found: dict[str, Any] = {"index": index.is_file()}
    if index.is_file():
        try:
            promised = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        except (ValueError, KeyError, TypeError, OSError) as failure:
            return {**found, "index_broken": f"{type(failure).__name__}: {failure}", "shards": []}
        names = sorted(set(promised.values()))
    else:
        names = [SINGLE] if (folder / SINGLE).is_file() else sorted(p.name for p in folder.glob("*.safetensors"))
    shards = [{"name": name, **_read(folder / name)} for name in names]
    held = {tensor: shard for shard in shards for tensor in shard.get("tensors", {})}
    lost = [t for t, file in promised.items() if t not in held and not _is_bad(shards, file)]
    tensors = {t: shard["tensors"][t] for t, shard in held.items()}
    layers = {int(t.removeprefix(LAYERS).partition(".")[0]) for t in tensors if t.startswith(LAYERS)}
    found |= {
        "lost": sorted(lost)[:5],
        "lost_count": len(lost),
        "parameters": sum(math.prod(shape) for _, shape in tensors.values()),
        "bytes": sum(math.prod(shape) * BITS.get(kind, 8) // 8 for kind, shape in tensors.values()),
        "embedding": tensors.get(EMBEDDING, (None, None))[1],
        "layers": max(layers) + 1 if layers else None,
        "others": sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf") for p in folder.glob(pattern))[:5],
    }
    for shard in shards:
        shard.pop("tensors", None)
    return {**found, "shards": shards}


def _is_bad(shards: list[dict[str, Any]], name: str) -> bool:
    return any(shard["name"] == name and "wrong" in shard for shard in shards)


def _read(file: Path) -> dict[str, Any]:
    """Return a shard's tensors with kind and shape, or what is `wrong` with it."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            first = opened.read(8)
            if POINTER.startswith(first) and len(first) == 8:
                return {"wrong": "pointer", "bytes": size}
            if len(first) < 8:
                return {"wrong": "empty", "bytes": size}
            length = struct.unpack("<Q", first)[0]
            if length > min(HEADER_BYTES_MAX, size - 8):
                return {"wrong": "header", "said": f"its header has {length} bytes, the file {size}", "bytes": size}
            header = json.loads(opened.read(length))
    except FileNotFoundError:
        return {"wrong": "missing"}
    except (OSError, ValueError) as failure:
        return {"wrong": "header", "said": str(failure)[:200], "bytes": 0}
    header.pop("__metadata__", None)
    try:
        tensors = {name: (one["dtype"], one["shape"]) for name, one in header.items()}
        end = 8 + length + max((one["data_offsets"][1] for one in header.values()), default=0)
    except (TypeError, KeyError, IndexError) as failure:
        return {"wrong": "header", "said": f"{type(failure).__name__}: {failure}", "bytes": size}
    if end != size:
        return {"wrong": "truncated" if size < end else "longer", "bytes": size, "expected": end}
    return {"tensors": tensors, "bytes": size}
