"""Facts about a training's data: files, columns, prompt lengths by the real tokenizer, the reward on three rows."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from raydebug.check.inside import reward
from raydebug.check.inside.config import CannotCompose, compose_live, plain, read_by, variables
from raydebug.check.inside.env import list_gpus
from raydebug.check.inside.verdict import ask_verl

SAMPLE_ROWS = 2000
SAMPLE_S = 2.0  # measuring lengths ends after so many seconds, wherever it is
REWARD_ROWS = 3
SPLITS = {"train": "train_files", "val": "val_files"}


def gather(request: dict[str, Any]) -> dict[str, Any]:
    """Return the config and what its data files hold; or Hydra's refusal."""
    try:
        live = compose_live(request)
        config = plain(live)
    except CannotCompose as refusal:
        return refusal.as_facts()
    data = config["data"]
    splits = {split: [_look(path, data) for path in paths_of(data.get(key))] for split, key in SPLITS.items()}
    rows: list[dict[str, Any]] = next((file["sample"] for file in splits["train"] if file.get("sample")), [])
    facts: dict[str, Any] = {
        "config": config,
        "variables": variables(),
        "gpus": len(list_gpus()["gpus"]),
        "splits": splits,
        "lengths": _lengths(config, rows),
        "reward": reward.try_out(config, rows[:REWARD_ROWS]),
        "verl": ask_verl(live),
    }
    for files in splits.values():
        for file in files:
            file.pop("sample", None)
    paths = [file["path"] for files in splits.values() for file in files]
    model = config["actor_rollout_ref"]["model"]
    facts["read"] = read_by(request, *paths, facts["reward"]["path"], model.get("tokenizer_path") or model["path"])
    return facts


def paths_of(value: Any) -> list[str]:
    """Return the files that `data.train_files` names: one path or several."""
    return [str(path) for path in value] if isinstance(value, list) else [str(value)] if value else []


def _look(path: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return what one file is: kind, columns with types, rows, the first of them."""
    file = Path(os.path.expanduser(path))  # noqa: PTH111 - as verl does: utils/fs.py
    found: dict[str, Any] = {"path": path, "exists": file.exists(), "is_file": file.is_file(), "remote": "://" in path}
    if not found["is_file"]:
        if file.is_dir():
            found["holds"] = sorted(p.name for p in file.iterdir())[:20]
        elif not found["exists"]:
            found["beside"] = sorted(p.name for p in file.parent.glob("*"))[:50] if file.parent.is_dir() else None
        return found
    found["bytes"] = file.stat().st_size
    try:
        if path.endswith(".parquet"):
            found |= _parquet(file)
        elif path.endswith((".json", ".jsonl")):
            found |= _json(file)
        else:
            found["format"] = file.suffix or "none"
    except Exception as failure:  # noqa: BLE001 - pyarrow raises its own and the system's errors
        found["unreadable"] = str(failure).partition(chr(10))[0][:300]
    return found


def _parquet(file: Path) -> dict[str, Any]:
    from pyarrow import parquet

    opened = parquet.ParquetFile(file)
    batch = next(opened.iter_batches(batch_size=SAMPLE_ROWS), None)
    rows = [] if batch is None else batch.to_pylist()
    return {
        "columns": {field.name: str(field.type) for field in opened.schema_arrow},
        "rows": opened.metadata.num_rows,
        "sample": rows,
    }


def _json(file: Path) -> dict[str, Any]:
    """Read JSON as `datasets` does: by pyarrow, a line for a row."""
    import json

    import pyarrow

    text = file.read_text(encoding="utf-8").lstrip()
    rows = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines() if line]
    table = pyarrow.Table.from_pylist(rows)
    columns = {field.name: str(field.type) for field in table.schema}
    return {"columns": columns, "rows": table.num_rows, "sample": rows[:SAMPLE_ROWS]}


def _lengths(config: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how many tokens the prompts have; or why that could not be measured."""
    data, model = config["data"], config["actor_rollout_ref"]["model"]
    limit = data.get("max_prompt_length")
    prompts = [row[data["prompt_key"]] for row in rows if row.get(data["prompt_key"]) is not None]
    if not prompts or not isinstance(limit, int):
        return {"unknown": "no prompts were read"}
    if not _are_messages(prompts[0]):
        return {"unknown": "the prompts are no lists of messages"}
    try:
        tokenizer = load_tokenizer(model)
    except Exception as failure:  # noqa: BLE001 - whatever it is, stage `model` names it
        return {"unknown": f"{type(failure).__name__}: {str(failure).partition(chr(10))[0][:200]}"}
    if not tokenizer.chat_template:
        return {"unknown": "the tokenizer has no chat template"}
    options = dict(data.get("apply_chat_template_kwargs") or {})
    deadline = time.monotonic() + SAMPLE_S
    lengths: list[int] = []
    for index, prompt in enumerate(prompts):
        try:
            said = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False, **options)
            lengths.append(len(tokenizer(said, add_special_tokens=False)["input_ids"]))
        except Exception as failure:  # noqa: BLE001 - a template is a program: TemplateError, TypeError, KeyError
            return {"row": index, "refused": f"{type(failure).__name__}: {str(failure).partition(chr(10))[0][:200]}",
                    "roles": [m.get("role") for m in prompt][:8]}  # fmt: skip
        if time.monotonic() > deadline:
            break
    return {
        "measured": len(lengths),
        "longest": max(lengths),
        "longest_row": lengths.index(max(lengths)),
        "too_long": sum(length > limit for length in lengths),
    }


def _are_messages(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(isinstance(one, dict) for one in prompt)


def load_tokenizer(model: dict[str, Any]) -> Any:
    """Return the model's tokenizer, from disk or the Hub's cache; nothing is fetched, no code of the model is run.

    Source: verl 0.9.1 workers/config/model.py: tokenizer_path, else hf_config_path, else path; custom_chat_template.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
    from transformers import AutoTokenizer

    path = os.path.expanduser(str(model.get("tokenizer_path") or model["path"]))  # noqa: PTH111
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=bool(model.get("trust_remote_code")))
    if model.get("custom_chat_template"):
        tokenizer.chat_template = model["custom_chat_template"]
    return tokenizer
