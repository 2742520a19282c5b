"""Facts about the model of a training: config, tokenizer, chat template, weight headers, support of its class."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import struct
from pathlib import Path
from typing import Any

from raydebug.check.probes import Facts
from raydebug.check.probes.env import list_gpus, memory_bytes
from raydebug.check.probes.images import look_at_processor
from raydebug.check.probes.plan import compose, load_tokenizer, read_by, trainer_version, variables
from raydebug.findings import describe_exception
from raydebug.trainers.config import TrainingConfig, package_folder
from raydebug.trainers.hub import is_hub_name, model_folder

MIB = 1024**2
MESSAGE = [{"role": "user", "content": "What is 1 plus 2?"}]
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
HEADER_BYTES_MAX = 100_000_000  # safetensors' own limit
POINTER = b"version https://git-lfs.github.com"
BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
        "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}  # fmt: skip
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
         "max_position_embeddings", "intermediate_size", "kv_lora_rank", "qk_rope_head_dim")  # fmt: skip
EMBEDDING, LAYERS = "model.embed_tokens.weight", "model.layers."


def gather(request: Facts) -> Facts:
    """Return the config and what is known of its model. Nothing is fetched.

    A model's own code runs only where the command says trust_remote_code=True: the training would run it too.
    """
    plan = compose(request)
    config = plan.config
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
    facts: Facts = {
        **plan.as_facts(),
        "trainer_version": trainer_version(request),
        "variables": variables(),
        "memory_bytes": memory_bytes(),
        "gpu_bytes": min((gpu["total_mib"] * MIB for gpu in list_gpus()["gpus"]), default=None),
    }
    if not config.get("model"):
        return {**facts, "unnamed": True, "empty": config.get("model") == ""}
    facts |= _find(str(config.get("model")))
    if facts["folder"] is None:
        return facts
    folder = Path(facts["folder"])
    facts |= _config_json(folder)
    if "json" not in facts:
        return facts
    facts["shards"] = look_at_shards(folder)
    may_run = bool(config.get("trust_remote_code"))
    if plan.has("the class of the model and its config", "transformers"):
        facts |= _transformers(folder, facts["json"], may_run=may_run)
    else:
        facts |= sizes_of(facts["json"])
    facts["vllm"] = _vllm_knows((facts["json"].get("architectures") or [None])[0])
    facts["has_flash_attention"] = importlib.util.find_spec("flash_attn") is not None
    if plan.has("the tokenizer", "transformers"):
        facts["tokenizer"] = _tokenizer(config)
    if "vision_config" in facts["json"]:
        facts["processor"] = look_at_processor(plan, folder, str((facts["json"].get("architectures") or [""])[0]))
    facts["read"] = read_by(request, folder, *folder.iterdir(), config.get("tokenizer"))
    return facts


def _find(path: str) -> Facts:
    """Return where a model lies: a folder, or a snapshot in the Hub's cache."""
    folder = Path(os.path.expanduser(path))  # noqa: PTH111 - as verl does
    if folder.exists():
        files = sorted(p.name for p in folder.iterdir())[:40] if folder.is_dir() else []
        return {"path": path, "folder": str(folder) if folder.is_dir() else None, "is_file": folder.is_file(),
                "files": files}  # fmt: skip
    found: Facts = {"path": path, "folder": None, "is_hub": is_hub_name(path)}
    if path.startswith(("hdfs://", "s3://")):
        return {**found, "remote": True}
    cached = model_folder(path)
    return {**found, "folder": str(cached) if cached else None}


def _config_json(folder: Path) -> Facts:
    file = folder / "config.json"
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"config_missing": True}
    except (OSError, ValueError) as failure:
        return {"config_broken": str(failure)[:200]}
    return {"json": said} if isinstance(said, dict) else {"config_broken": "it is not a JSON object"}


def _transformers(folder: Path, said: Facts, *, may_run: bool) -> Facts:
    """Return whether transformers knows the config's type and the architecture's class."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    transformers.utils.logging.set_verbosity_error()
    architecture = (said.get("architectures") or [None])[0]
    found: Facts = {
        "transformers_version": transformers.__version__,
        "type_known": said.get("model_type") in CONFIG_MAPPING_NAMES,
        "class_known": bool(architecture) and hasattr(transformers, str(architecture)),
    }
    model_class: Any = getattr(transformers, str(architecture), None)
    if hasattr(model_class, "is_backend_compatible"):
        found["vllm_may_wrap"] = bool(model_class.is_backend_compatible())
    needs_code = not found["type_known"] and bool(said.get("auto_map"))
    if needs_code and not may_run:
        return {**found, "remote_code": said["auto_map"]}
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=may_run)
    except Exception as failure:  # noqa: BLE001 - validators of config classes raise anything
        return {**found, "config_refused": describe_exception(failure)}
    text = config.get_text_config()
    return {**found, **sizes_of({name: getattr(text, name, None) for name in (*SIZES, "layer_types")})}


def sizes_of(said: Facts) -> Facts:
    """Return the sizes in a config of transformers, and the kinds of its layers; what a class adds is not in it."""
    text = said.get("text_config")
    said = text if isinstance(text, dict) else said
    kinds = said.get("layer_types")
    return {
        "sizes": {name: said[name] for name in SIZES if isinstance(said.get(name), int)},
        "layer_types": sorted({str(kind) for kind in kinds}) if isinstance(kinds, list) else [],
    }


def _vllm_knows(architecture: Any) -> Facts:
    """Return whether vLLM has a model for an architecture, from its source: importing it would take 12 s.

    Source: vllm 0.24 and 0.28 model_executor/models/registry.py: `"Name": ("module", "Class"),` and
    `_PREVIOUSLY_SUPPORTED_MODELS`, `"Name": "last version"`.
    """
    vllm = package_folder("vllm")
    if vllm is None:
        return {}
    try:
        text = (vllm / "model_executor" / "models" / "registry.py").read_text(encoding="utf-8")
    except OSError:
        return {}
    known = set(re.findall(r'^    "(\w+)": \(', text, re.MULTILINE))
    former = dict(re.findall(r'^    "(\w+)": "([\d.]+)",', text, re.MULTILINE))
    return {"known": architecture in known, "until": former.get(str(architecture)), "models": len(known)}


def _tokenizer(config: TrainingConfig) -> Facts:
    """Return facts about the tokenizer: its size, its template, a rendered message."""
    try:
        tokenizer = load_tokenizer(config)
    except Exception as failure:  # noqa: BLE001 - tokenizers raises plain Exception for a broken file
        return {"failed": describe_exception(failure)}
    found: Facts = {
        "class": type(tokenizer).__name__,
        "largest_id": max(tokenizer.get_vocab().values(), default=-1),
        "eos": tokenizer.eos_token_id,
        "template": bool(tokenizer.chat_template),
    }
    if tokenizer.chat_template:
        try:
            said = tokenizer.apply_chat_template(MESSAGE, add_generation_prompt=True, tokenize=False)
            found["rendered"] = len(tokenizer(said, add_special_tokens=False)["input_ids"])
            found["says_it"] = MESSAGE[0]["content"] in said
        except Exception as failure:  # noqa: BLE001 - a template is a program
            found["template_failed"] = describe_exception(failure)
    return found


def look_at_shards(folder: Path) -> Facts:
    """Return the shards of a model's folder, each with what is wrong with it, and the sums over the good ones."""
    promised: dict[str, str] = {}
    index = folder / INDEX
    found: Facts = {"index": index.is_file()}
    if index.is_file():
        try:
            promised = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        except (ValueError, KeyError, TypeError, OSError) as failure:
            return {**found, "index_broken": f"{type(failure).__name__}: {failure}", "shards": []}
        names = sorted(set(promised.values()))
    else:
        names = [SINGLE] if (folder / SINGLE).is_file() else sorted(p.name for p in folder.glob("*.safetensors"))
    shards = [{"name": name, **_read_shard(folder / name)} for name in names]
    held = {tensor: shard for shard in shards for tensor in shard.get("tensors", {})}
    bad = {shard["name"] for shard in shards if "wrong" in shard}
    lost = [tensor for tensor, file in promised.items() if tensor not in held and file not in bad]
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


def _read_shard(file: Path) -> Facts:
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
        end = 8 + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    except (TypeError, KeyError, IndexError) as failure:
        return {"wrong": "header", "said": f"{type(failure).__name__}: {failure}", "bytes": size}
    if end != size:
        return {"wrong": "truncated" if size < end else "longer", "bytes": size, "expected": end}
    return {"tensors": tensors, "bytes": size}
