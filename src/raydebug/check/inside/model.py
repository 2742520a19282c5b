"""Facts about the model of a training: config, tokenizer, chat template, weight headers, who knows its architecture."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

from raydebug.check.inside import shards
from raydebug.check.inside.__main__ import describe
from raydebug.check.inside.config import CannotCompose, compose, read_by, variables
from raydebug.check.inside.data import load_tokenizer
from raydebug.check.inside.env import list_gpus

MIB = 1024**2
MESSAGE = [{"role": "user", "content": "What is 1 plus 2?"}]


def gather(request: dict[str, Any]) -> dict[str, Any]:
    """Return the config and what is known of its model; or Hydra's refusal. Nothing is fetched.

    A model's own code runs only where the command says trust_remote_code=True: the training would run it too.
    """
    try:
        config = compose(request)
    except CannotCompose as refusal:
        return refusal.as_facts()
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
    model = config["actor_rollout_ref"]["model"]
    facts: dict[str, Any] = {
        "config": config,
        "variables": variables(),
        "memory_bytes": _memory_bytes(),
        "gpu_bytes": min((gpu["total_mib"] * MIB for gpu in list_gpus()["gpus"]), default=None),
        **_find(str(model["path"])),
    }
    if facts["folder"] is None:
        return facts
    folder = Path(facts["folder"])
    facts |= _config_json(folder)
    if "json" not in facts:
        return facts
    facts["shards"] = shards.look(folder)
    may_run = bool(model.get("trust_remote_code"))
    facts |= _transformers(folder, facts["json"], may_run=may_run)
    facts["vllm"] = _vllm_knows((facts["json"].get("architectures") or [None])[0])
    facts["has_flash_attention"] = importlib.util.find_spec("flash_attn") is not None
    facts["tokenizer"] = _tokenizer(model)
    facts["read"] = read_by(request, folder, *folder.iterdir(), model.get("tokenizer_path"))
    return facts


def _memory_bytes() -> int:
    """Return the memory of this machine, or of this container where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return total


def _find(path: str) -> dict[str, Any]:
    """Return where a model lies: a folder, or a snapshot in the Hub's cache."""
    folder = Path(os.path.expanduser(path))  # noqa: PTH111 - as verl does
    if folder.exists():
        files = sorted(p.name for p in folder.iterdir())[:40] if folder.is_dir() else []
        return {"path": path, "folder": str(folder) if folder.is_dir() else None, "is_file": folder.is_file(),
                "files": files}  # fmt: skip
    found: dict[str, Any] = {"path": path, "folder": None, "is_hub": bool(re.fullmatch(r"[\w.-]+/[\w.-]+", path))}
    if path.startswith(("hdfs://", "s3://")):
        return {**found, "remote": True}
    if found["is_hub"]:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(path, "config.json")
        if isinstance(cached, str):
            found["folder"] = str(Path(cached).parent)
    return found


def _config_json(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"config_missing": True}
    except (OSError, ValueError) as failure:
        return {"config_broken": str(failure)[:200]}
    return {"json": said} if isinstance(said, dict) else {"config_broken": "it is no JSON object"}


def _transformers(folder: Path, said: dict[str, Any], *, may_run: bool) -> dict[str, Any]:
    """Return whether transformers knows the config's type and the architecture's class."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    transformers.utils.logging.set_verbosity_error()
    architecture = (said.get("architectures") or [None])[0]
    found: dict[str, Any] = {
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
        return {**found, "config_refused": describe(failure)}
    text = config.get_text_config()
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
             "max_position_embeddings", "intermediate_size", "kv_lora_rank", "qk_rope_head_dim")  # fmt: skip
    values = {name: getattr(text, name, None) for name in names}
    kinds = sorted(set(getattr(text, "layer_types", None) or []))
    return {**found, "sizes": {k: v for k, v in values.items() if isinstance(v, int)}, "layer_types": kinds}


def _vllm_knows(architecture: Any) -> dict[str, Any]:
    """Return whether vLLM has a model for an architecture, from its source: importing it would take 12 s.

    Source: vllm 0.24 and 0.28 model_executor/models/registry.py: `"Name": ("module", "Class"),` and
    `_PREVIOUSLY_SUPPORTED_MODELS`, `"Name": "last version"`.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        return {}
    file = Path(spec.origin).parent / "model_executor" / "models" / "registry.py"
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        return {}
    known = set(re.findall(r'^    "(\w+)": \(', text, re.MULTILINE))
    former = dict(re.findall(r'^    "(\w+)": "([\d.]+)",', text, re.MULTILINE))
    return {"known": architecture in known, "until": former.get(str(architecture)), "models": len(known)}


def _tokenizer(model: dict[str, Any]) -> dict[str, Any]:
    """Return how the tokenizer does: its size, its template, a message rendered."""
    try:
        tokenizer = load_tokenizer(model)
    except Exception as failure:  # noqa: BLE001 - tokenizers raises plain Exception for a broken file
        return {"failed": describe(failure)}
    found: dict[str, Any] = {
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
            found["template_failed"] = describe(failure)
    return found
