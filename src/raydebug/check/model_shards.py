"""What the headers of the weight files say. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raydebug.check.finding import Finding, error, warning

COPY_AGAIN = "copy or download that file again (`hf download` checks what it wrote)"


def judge(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Return what is wrong with the weights of a model."""
    found, path = facts["shards"], facts["path"]
    if "index_broken" in found:
        yield error(
            "model.shard",
            f"{path}/model.safetensors.index.json cannot be read",
            why=found["index_broken"],
            fix=COPY_AGAIN,
        )
        return
    if not found["shards"]:
        yield _none(path, found["others"])
        return
    bad = [shard for shard in found["shards"] if "wrong" in shard]
    for shard in bad[:3]:
        yield _bad(path, shard, len(bad))
    if found["lost_count"]:
        yield error(
            "model.shard",
            f"{found['lost_count']} tensors that the index promises are in no file",
            why=f"such as {', '.join(found['lost'])}",
            fix="files of two downloads are mixed: " + COPY_AGAIN.replace("that file", "the model"),
        )
    if not bad:
        yield from _against_config(facts, found)


def _none(path: str, others: list[str]) -> Finding:
    if others:
        return warning(
            "model.weights",
            f"{path} has no .safetensors, but {', '.join(others)}",
            why="weights in pickle files are read whole by each rank, and run code when they are loaded",
            fix="save_pretrained(..., safe_serialization=True) once",
        )
    return error(
        "model.weights",
        f"{path} has no weights",
        why="neither .safetensors nor .bin files are there",
        fix="copy the whole model; a folder with config and tokenizer alone is half of it",
    )


def _bad(path: str, shard: Mapping[str, Any], count: int) -> Finding:
    name, more = f"{path}/{shard['name']}", f" (one of {count} files)" if count > 1 else ""
    what, why = {
        "missing": (f"{name} is not there", "the index names it"),
        "pointer": (f"{name} is a pointer of git-lfs, not the file", "`git lfs pull` was not run"),
        "empty": (f"{name} is empty", f"it has {shard.get('bytes')} bytes"),
        "header": (f"{name} is no safetensors file", shard.get("said", "")),
        "truncated": (
            f"{name} is cut off",
            f"its header promises {shard.get('expected')} bytes, it has {shard.get('bytes')}",
        ),
        "longer": (
            f"{name} is longer than its header says",
            f"{shard.get('bytes')} bytes, not {shard.get('expected')}",
        ),
    }[shard["wrong"]]
    fix = "git lfs pull" if shard["wrong"] == "pointer" else COPY_AGAIN
    return error("model.shard", what + more, why=why, fix=fix)


def _against_config(facts: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Finding]:
    sizes, shape, layers = facts.get("sizes", {}), found["embedding"], found["layers"]
    if "quantization_config" in facts["json"]:
        return  # packed weights have other shapes
    wanted = [sizes.get("vocab_size"), sizes.get("hidden_size")]
    if shape is not None and None not in wanted and list(shape) != wanted:
        yield error(
            "model.config-mismatch",
            f"vocab_size, hidden_size: config.json says {wanted[0]}, {wanted[1]}, the weights {shape[0]}, {shape[1]}",
            why="loading ends with 'size mismatch', or vLLM with an assertion in its weight loader",
            fix="the config.json that belongs to these weights",
        )
    expected = sizes.get("num_hidden_layers")
    if layers is not None and expected is not None and layers < expected:
        yield error(
            "model.config-mismatch",
            f"config.json says {expected} layers, the weights have {layers}",
            why="the others would start from random numbers, with one warning of transformers",
            fix="the config.json that belongs to these weights, or all of their files",
        )
