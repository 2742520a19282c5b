"""Facts about a training's data: files, columns, prompt lengths by its tokenizer, the reward function on three rows."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from raydebug.check.probes import Facts, doing
from raydebug.check.probes.env import list_gpus
from raydebug.check.probes.images import count_placeholders, count_tokens, has_vision, look_at_images
from raydebug.check.probes.plan import (
    VERDICT_NEEDS,
    Plan,
    compose,
    load_tokenizer,
    paths_of,
    read_by,
    trainer_version,
    variables,
)
from raydebug.findings import describe_exception, in_a_line
from raydebug.settings.flavours import numbers
from raydebug.trainers.hub import is_hub_name
from raydebug.trainers.verl.checks import PpoChecks

# Source: verl 0.4.0 to 0.6.1 trainer/ppo/reward.py get_custom_reward_fn; 0.7.0 utils/import_utils.py load_module.
NOT_IN_SYS_SINCE = (0, 7)
SAMPLE_ROWS = 2000
SAMPLE_S = 2.0  # measuring lengths ends after so many seconds, wherever it is
REWARD_ROWS = 3
SPLITS = {"train": "train_data", "val": "val_data"}
SOLUTION = "The answer is 1."  # in place of what a model generates
CALL_LIMIT_S = 5.0
DATA_FILES = (".parquet", ".json", ".jsonl", ".csv", ".arrow", ".txt")


def gather(request: Facts) -> Facts:
    """Return the config and what its data files hold."""
    plan = compose(request)
    config = plan.config
    splits = {split: [_look(plan, path) for path in paths_of(config.get(word))] for split, word in SPLITS.items()}
    rows: list[Facts] = next((file["sample"] for file in splits["train"] if file.get("sample")), [])
    version = trainer_version(request)
    facts: Facts = {
        "trainer_version": version,
        "variables": variables(),
        "gpus": len(list_gpus()["gpus"]),
        "splits": splits,
    }
    own: list[Any] = []
    if (rules := plan.rules) is not None:
        facts |= {
            "lengths": _lengths(plan, rows),
            "images": look_at_images(plan, rows),
            "reward": try_reward(plan, rules, rows[:REWARD_ROWS], version),
            "verdict": plan.verdict(),
        }
        if request.get("profile"):
            facts["full"] = compose({**request, "profile": None}).composed.values
        own = [facts["reward"]["path"], config.get("tokenizer") or config.get("model")]
    facts |= plan.as_facts()
    for files in splits.values():
        for file in files:
            file.pop("sample", None)
    paths = [file["path"] for files in splits.values() for file in files]
    facts["read"] = read_by(request, *paths, *own)
    return facts


def _look(plan: Plan, path: str) -> Facts:
    """Return facts about one file: kind, columns with types, number of rows, the first rows."""
    file = Path(os.path.expanduser(path))  # noqa: PTH111 - as verl does: utils/fs.py
    is_name = plan.rules is None and is_hub_name(path) and file.suffix not in DATA_FILES and not file.exists()
    is_remote = "://" in path or is_name  # a data set of the Hub, which verl's PPO does not read
    found: Facts = {"path": path, "exists": file.exists(), "is_file": file.is_file(), "remote": is_remote}
    if not found["is_file"]:
        if file.is_dir():
            found["holds"] = sorted(p.name for p in file.iterdir())
        elif not found["exists"]:
            found["beside"] = sorted(p.name for p in file.parent.glob("*"))[:50] if file.parent.is_dir() else None
        return found
    found["bytes"] = file.stat().st_size
    if path.endswith((".parquet", ".json", ".jsonl")) and not plan.has(f"what is in {path}", "pyarrow"):
        return found
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


def _parquet(file: Path) -> Facts:
    from pyarrow import parquet

    opened = parquet.ParquetFile(file)
    batch = next(opened.iter_batches(batch_size=SAMPLE_ROWS), None)
    rows = [] if batch is None else batch.to_pylist()
    return {
        "columns": {field.name: str(field.type) for field in opened.schema_arrow},
        "rows": opened.metadata.num_rows,
        "sample": rows,
    }


def _json(file: Path) -> Facts:
    """Read JSON as `datasets` does: by pyarrow, a line for a row."""
    import json

    import pyarrow

    text = file.read_text(encoding="utf-8").lstrip()
    rows = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.split("\n") if line.strip()]
    table = pyarrow.Table.from_pylist(rows)
    columns = {field.name: str(field.type) for field in table.schema}
    return {"columns": columns, "rows": table.num_rows, "sample": rows[:SAMPLE_ROWS]}


def _lengths(plan: Plan, rows: list[Facts]) -> Facts:
    """Return the lengths of the prompts in tokens, or why they could not be measured; empty if that was not tried."""
    config = plan.config
    limit, column = config.get("prompt_tokens"), config.get("prompt_column")
    prompts = [row[column] for row in rows if row.get(column) is not None]
    images = [row.get(config.get("image_column")) or [] for row in rows if row.get(column) is not None]
    if not rows or not isinstance(limit, int):
        return {}
    if not prompts:
        return {"unknown": "no prompts were read"}
    if not isinstance(prompts[0], list) or not all(isinstance(message, dict) for message in prompts[0]):
        return {"unknown": "the prompts are not lists of messages"}
    if not (config.get("tokenizer") or config.get("model")):
        return {"unknown": "no key that is known here names a model"}
    if not plan.has("lengths of the prompts", "transformers"):
        return {}
    try:
        tokenizer = load_tokenizer(config)
    except Exception as failure:  # noqa: BLE001 - whatever it is, stage `model` names it
        return {"unknown": in_a_line(failure)}
    if not tokenizer.chat_template:
        return {"unknown": "the tokenizer has no chat template"}
    options = dict(config.get("template_options") or {})
    is_seen = any(images) and has_vision(config) and plan.has("tokens of the images", "transformers", "PIL")
    count = count_tokens(config, options) if is_seen else None
    deadline = time.monotonic() + SAMPLE_S
    lengths: list[int] = []
    image_tokens = 0
    for index, (prompt, shown) in enumerate(zip(prompts, images, strict=True)):
        if index and time.monotonic() > deadline:
            break
        try:
            if count is not None and shown:
                length, of_images = count(prompt, shown) if len(shown) == count_placeholders(prompt) else (None, 0)
                image_tokens = max(image_tokens, of_images)
            else:
                said = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False, **options)
                length = len(tokenizer(said, add_special_tokens=False)["input_ids"])
        except Exception as failure:  # noqa: BLE001 - a template is a program: TemplateError, TypeError, KeyError
            if count is None or not shown:
                roles = [message.get("role") for message in prompt][:8]
                return {"row": index, "refused": in_a_line(failure), "roles": roles}
            length = None
        if length is not None:  # of images that do not fit, the rules about images report it
            lengths.append(length)
    if not lengths:
        return {"unknown": "no prompt with its images could be rendered"}
    return {
        "image_tokens": image_tokens,
        "measured": len(lengths),
        "longest": max(lengths),
        "longest_row": lengths.index(max(lengths)),
        "too_long": sum(length > limit for length in lengths),
    }


def try_reward(plan: Plan, rules: PpoChecks, rows: list[Facts], version: str = "") -> Facts:
    """Return what the reward function of a command returned for rows of its data."""
    reward = rules.reward_function(plan.config)
    found: Facts = {"path": reward.path, "name": reward.name, "manager": reward.manager, "calls": []}
    if not reward.path and reward.by_model:
        return {**found, "skipped": "a reward model scores"}
    if not reward.path and not (rows and plan.has("the trainer's own reward function", *VERDICT_NEEDS)):
        return {**found, "skipped": "there is nothing to try it with"}
    try:
        in_sys = plan.program.trainer.name == "verl" and bool(version) and numbers(version) < NOT_IN_SYS_SINCE
        load = partial(_load_function, str(reward.path), reward.name, found, in_sys=in_sys)
        with doing("as the reward function is loaded"):
            function = load() if reward.path else rules.own_reward()
    except Exception as failure:  # noqa: BLE001 - the user's own code
        missing = (failure.name or "").partition(".")[0] if isinstance(failure, ModuleNotFoundError) else ""
        if missing in VERDICT_NEEDS:  # every training needs these: stage `env` reports them
            plan.has("the reward function", missing)
            return {**found, "skipped": f"{missing} is missing"}
        if not reward.path and isinstance(failure, ImportError):  # a fork's own trainer calls another function
            return {**found, "skipped": str(failure)}
        return {**found, "import": describe_exception(failure)}
    if function is None:
        return found
    for index, row in enumerate(rows):
        try:
            arguments = {**rules.reward_arguments(row, SOLUTION), **reward.options}
        except (KeyError, TypeError):
            called = {"skipped": "the row lacks a column"}  # the rules about columns report it
        else:
            with doing(f"row {index}"):
                called = _call_reward(function, arguments)
        found["calls"].append({"row": index, "source": row.get("data_source"), **called})
    return found


def _load_function(path: str, name: str, found: Facts, *, in_sys: bool) -> Any:
    """Return the function as verl 0.9.1 utils/import_utils.py load_extern_object would; None if it is not there.

    `in_sys` puts its module into sys.modules, where dataclasses look for it.
    """
    import importlib
    import importlib.util

    if path.startswith("pkg://"):
        module = importlib.import_module(path.removeprefix("pkg://").replace("/", "."))
    else:
        file = Path(path.removeprefix("file://"))
        if not file.is_file():
            found["missing"] = str(file)
            return None
        called = "custom_module" if in_sys else f"custom_module_{abs(hash(os.path.abspath(file)))}"
        spec = importlib.util.spec_from_file_location(called, file)
        if spec is None or spec.loader is None:
            found["missing"] = f"{file} (no Python file)"
            return None
        module = importlib.util.module_from_spec(spec)
        if in_sys:
            sys.modules[called] = module
        spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        functions = inspect.getmembers(module, inspect.isfunction)
        found["missing_function"] = [n for n, f in functions if f.__module__ == module.__name__]
        return None
    return function


def _call_reward(function: Any, arguments: Facts) -> Facts:
    try:
        value = function(**arguments)
        if inspect.isawaitable(value):
            value = asyncio.run(asyncio.wait_for(value, CALL_LIMIT_S))
    except Exception as failure:  # noqa: BLE001 - the user's own code
        return {"raised": describe_exception(failure)}
    score: Any = value.get("score") if isinstance(value, dict) else value
    try:
        usable = math.isfinite(float(score))
    except (TypeError, ValueError):
        usable = False
    return {"value": repr(value)[:200], "usable": usable}
