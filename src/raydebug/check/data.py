"""Stage `data`: files, rows, columns, prompt lengths and the reward function, as the trainer will read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raydebug.check import config as config_rules
from raydebug.check.config import HOW, not_run, spelled, without_rules
from raydebug.check.probes import Facts
from raydebug.check.target import Target
from raydebug.findings import Finding, finding
from raydebug.settings.flavours import numbers
from raydebug.trainers.config import TrainingConfig, value_at
from raydebug.trainers.verl.config_files import as_hydra_reads

BUDGET_S = 10.0
# The columns that a reward needs. Source: verl 0.9.1 experimental/reward_loop/reward_manager/naive.py.
NEEDED_BY_REWARD = ("data_source", "reward_model")
# Managers that call the function as the naive one does. Source: verl 0.9.1 experimental/reward_loop/reward_manager/.
SAME_CALL = ("naive", "dapo", "gdpo", "remote")


def judge(target: Target, facts: Facts) -> list[Finding]:
    """Return the findings about a command's data. Pure."""
    config = target.config(facts["config"])
    found = config_rules.judge(target, facts)
    if config_rules.lacks_values(found):
        return found
    if target.elsewhere:
        facts = _without_missing(facts)
    if target.rules is None:
        return [*found, *_files_of_any_kind(target, facts), *judge_columns(target, facts)]
    if named := config.get("data_class"):
        # Source: verl 0.9.1 utils/dataset/rl_dataset.py get_dataset_class. It may read what it likes.
        found += [replace(finding, severity="warning") for finding in _files_of_any_kind(target, facts)]
        key = config.keys["data_class"]
        why = f"{key}={named}: a class of the command's own reads it"
        return [*found, finding("check.not-run.own-class", why=why, how=HOW)]
    found += _files(config, facts["splits"])
    if any(finding.severity == "error" and finding.code.startswith("data.") for finding in found):
        return found  # columns and rows of what cannot be read
    is_known = config_rules.is_release(target, facts)
    needed = NEEDED_BY_REWARD if is_known and facts["reward"]["manager"] in SAME_CALL else ()
    found += _columns(config, facts["splits"], needed)
    found += judge_images(config, facts["images"])
    found += _rows(config, facts)
    if facts["lengths"]:
        found += _lengths(config, facts["lengths"], facts["trainer_version"])
    if is_known or facts["reward"]["path"]:  # a fork may score without the reward function that it has of verl
        found += judge_reward(facts["reward"], config.keys)
    return found


def _without_missing(facts: Facts) -> Facts:
    """Return the facts with a file that is not here as one that only the trainer can reach."""
    splits = {
        split: [{**file, "absent": not file["exists"] and not file["remote"]} for file in files]
        for split, files in facts["splits"].items()
    }
    return {**facts, "splits": splits}


def _files_of_any_kind(target: Target, facts: Facts) -> Iterator[Finding]:
    """Return which files are missing or damaged, for a trainer that may read folders and formats of its own."""
    for split, files in facts["splits"].items():
        for file in files:
            if not file["exists"] or "unreadable" in file:
                yield from _file(spelled(target, facts, f"{split}_data"), file, "")


def judge_columns(target: Target, facts: Facts) -> Iterator[Finding]:
    """Return what is wrong with the columns of the data files that were read."""
    config = target.config(facts["config"])
    prompt, key = config.get("prompt_column"), spelled(target, facts, "prompt_column")
    named = False
    for split, files in facts["splits"].items():
        for file in files:
            named = True
            if prompt is not None and prompt not in file.get("columns", [prompt]):
                yield finding(
                    "data.column-missing.fork",
                    key=spelled(target, facts, f"{split}_data"),
                    prompt=prompt,
                    file=file,
                    columns=", ".join(file["columns"]) or "no column",
                    key_2=key,
                )
    yield from not_run(facts)
    if not named:
        key = spelled(target, facts, "train_data")
        yield finding("check.not-run.data", key=key, how=HOW)
    yield without_rules(target, "the prompts, their lengths and the reward")


def _files(config: TrainingConfig, splits: Mapping[str, list[Mapping[str, Any]]]) -> Iterator[Finding]:
    for split, files in splits.items():
        key = config.keys[f"{split}_data"]
        if not files and value_at(config.values, key, splits) is not splits:
            yield finding("data.file-missing.unnamed", key=key)
        for file in files:
            yield from _file(key, file)


def _file(
    key: str,
    file: Mapping[str, Any],
    example: str = "; `raydebug tiny dataset DIR` makes one that is right, to compare with",
) -> Iterator[Finding]:
    path = file["path"]
    if file["remote"] or file.get("absent"):
        is_remote = file["remote"]
        yield finding("data.file-missing.remote" if is_remote else "data.file-missing.elsewhere", key=key, path=path)
    elif not file["exists"]:
        folder = file.get("beside")
        beside = [name for name in folder or [] if name.endswith((".parquet", ".jsonl", ".json"))]
        case = "no-folder" if folder is None else "neighbours" if beside else "alone"
        yield finding(f"data.file-missing.{case}", key=key, path=path, beside=beside[:5], example=example)
    elif not file["is_file"]:
        inside = [as_hydra_reads(Path(path, name)) for name in file.get("holds", []) if name.endswith(".parquet")]
        shown = ",".join(inside if len(inside) <= 3 else [*inside[:3], "..."])
        overrides = {key: f"[{','.join(inside)}]"} if inside else {}
        case = "files" if inside else "none"
        yield finding(
            f"data.not-a-file.{case}", key=key, path=path, count=len(inside), shown=shown, overrides=overrides
        )
    elif "format" in file:
        yield finding("data.format", key=key, path=path, file=file)
    elif "unreadable" in file:
        yield finding("data.unreadable", key=key, path=path, file=file)


def _columns(
    config: TrainingConfig, splits: Mapping[str, list[Mapping[str, Any]]], needed: Sequence[str]
) -> Iterator[Finding]:
    prompt, prompt_key = config.get("prompt_column"), config.keys["prompt_column"]
    if prompt is None:
        return  # of a config that was not read, or of a fork
    for split, files in splits.items():
        read = [file for file in files if "columns" in file]
        for file in read:
            yield from _columns_of(config.keys[f"{split}_data"], file, prompt, prompt_key, needed)
        kinds = {tuple(sorted(file["columns"])) for file in read}
        if len(kinds) > 1:
            columns = "; ".join(f"{file['path']}: {', '.join(file['columns'])}" for file in read)
            yield finding("data.columns-differ", key=config.keys[f"{split}_data"], columns=columns)


def _columns_of(
    key: str, file: Mapping[str, Any], prompt: str, prompt_key: str, needed: Sequence[str]
) -> Iterator[Finding]:
    columns: Mapping[str, str] = file["columns"]
    has = f"{file['path']} has {', '.join(columns) or 'no column'}"
    if prompt not in columns:
        other = next((name for name in ("prompt", "messages", "raw_prompt") if name in columns), None)
        overrides = {prompt_key: other} if other else {}
        case = "prompt" if other else "no-prompt"
        yield finding(
            f"data.column-missing.{case}", key=key, prompt=prompt, has=has, prompt_key=prompt_key, overrides=overrides
        )
    elif "role" not in columns[prompt] or not columns[prompt].startswith(("list", "large_list")):
        yield finding("data.column-type.prompt", key=key, prompt=prompt, kind=columns[prompt])
    for name in needed:
        if name not in columns:
            shape = "" if name == "data_source" else ": {style, ground_truth}"
            yield finding("data.column-missing.needed", key=key, name=name, has=has, shape=shape)
    held = columns.get("reward_model") if needed else None
    if held is not None and "ground_truth" not in held:
        yield finding("data.column-type.reward-model", key=key, held=held)
    extra = columns.get("extra_info")
    if extra not in (None, "null") and not extra.startswith("struct"):
        yield finding("data.column-type.extra-info", key=key, extra=extra)


def judge_images(config: TrainingConfig, found: Mapping[str, Any]) -> Iterator[Finding]:
    """Return the findings about images in the data. Pure."""
    key, column = config.keys["image_column"], found["column"]
    if found["placeholders"] and not found["in_data"]:
        other = next(iter(found["others"]), None)
        overrides = {key: other} if other else {}
        count, case = found["placeholders"], "other" if other else "none"
        yield finding(f"data.image-column.{case}", placeholders=count, column=column, key=key, overrides=overrides)
        return
    if found["images"] and found["vision"] is False:
        yield finding("data.image-model", column=column, key=key)
        return
    if "differs" in found:
        row = found["differs"]
        case = "few" if row["placeholders"] > row["images"] else "many"
        yield finding(f"data.image-count.{case}", row=row)
    if "broken" in found:
        yield finding("data.image-broken", image=found["broken"])


def _rows(config: TrainingConfig, facts: Facts) -> Iterator[Finding]:
    rows = {split: sum(file.get("rows", 0) for file in files) for split, files in facts["splits"].items()}
    # Fetched by the trainer, not named, or not read: their rows are not known.
    remote = {split: not all("rows" in file for file in files) or not files for split, files in facts["splits"].items()}
    limit = config.get("train_samples") or -1
    train = min(rows["train"], limit) if limit > 0 else rows["train"]
    wanted = config.get("generation_batch_size") or config.get("train_batch_size")
    if not isinstance(wanted, int) or remote["train"]:
        return
    lengths = facts["lengths"]
    dropped = lengths.get("too_long", 0) if config.get("filter_long_prompts") else 0
    whole = lengths.get("measured") == rows["train"] == train  # verl takes train_max_samples first, then filters
    left = train - dropped if whole else train
    if left < wanted:
        smaller = _fitting(config, left)
        filtered = f"{dropped} of {train} are longer than max_prompt_length and filtered out; " if left != train else ""
        about: dict[str, Any] = {"left": left, "wanted": wanted, "filtered": filtered, "config": config}
        yield finding(f"data.too-few-rows.{'train' if smaller else 'no-batch'}", overrides=smaller, **about)
    if rows["val"] == 0 and not remote["val"]:
        yield finding("data.too-few-rows.validation", config=config)


def _fitting(config: TrainingConfig, rows: int) -> dict[str, str | None]:
    """Return overrides that make the batch as large as the rows allow; none where nothing does."""
    batch = 0 if config.ranks is None else rows // config.ranks * config.ranks
    if batch < 1:
        return {}
    smaller: dict[str, str | None] = {config.keys["train_batch_size"]: str(batch)}
    mini = config.whole("mini_batch_size")
    if mini is not None and (mini > batch or batch % mini):
        smaller[config.keys["mini_batch_size"]] = str(batch)
    return smaller


def _lengths(config: TrainingConfig, lengths: Mapping[str, Any], version: str) -> Iterator[Finding]:
    if "unknown" in lengths:
        yield finding("data.lengths-unknown", lengths=lengths)
        return
    if "refused" in lengths:
        yield finding("data.prompt-template", lengths=lengths, roles=lengths["roles"], config=config)
        return
    key, limit = config.keys["prompt_tokens"], config.get("prompt_tokens")
    if not lengths["too_long"]:
        return
    images = ""
    if lengths.get("image_tokens"):
        images = f"; the images of one take up to {lengths['image_tokens']} of them"
    about: dict[str, Any] = {"lengths": lengths, "limit": limit, "images": images, "key": key, "config": config}
    if config.get("filter_long_prompts"):
        yield finding("data.prompt-too-long.left-out", **about)
        return
    # Source: verl 0.4.1 to 0.6.1 utils/torch_functional.py postprocess_data; from 0.7.0 on rl_dataset.py passes no
    # truncation to it.
    kept = config.get("truncation")
    case = "cut" if not version or numbers(version) >= (0, 7) else "refused" if kept == "error" else "truncated"
    overrides = {key: str(lengths["longest"])}
    yield finding(f"data.prompt-too-long.{case}", version=version, kept=kept, overrides=overrides, **about)


def judge_reward(tried: Mapping[str, Any], keys: Mapping[str, str]) -> Iterator[Finding]:
    """Return the findings about a reward function that was tried on the first rows (`probes/data.py`). Pure."""
    file_key, name_key = keys["reward_file"], keys["reward_name"]
    where = f"{tried['path']}:{tried['name']}" if tried["path"] else "verl's own reward"
    if "missing" in tried:
        yield finding("data.reward-missing.file", tried=tried, file_key=file_key)
    elif "missing_function" in tried:
        others = tried["missing_function"]
        overrides = {name_key: others[0]} if len(others) == 1 else {}
        case = "function" if overrides else "functions"
        yield finding(f"data.reward-missing.{case}", tried=tried, name_key=name_key, overrides=overrides)
    elif failure := tried.get("import"):
        package = failure["message"].partition("'")[2].partition("'")[0]
        case = "package" if failure["type"] == "ModuleNotFoundError" and package else "code"
        yield finding(f"data.reward-import.{case}", where=where, failure=failure, package=package)
    elif tried["manager"] in SAME_CALL:
        for call in tried["calls"]:
            if "raised" in call or not call.get("usable", True):
                yield _call(call, where, file_key)
                return  # the other rows mostly say the same


def _call(call: Mapping[str, Any], where: str, file_key: str) -> Finding:
    if "raised" not in call:
        return finding("data.reward-value", where=where, call=call)
    raised = call["raised"]
    if raised["type"] == "NotImplementedError" and "data_source" in raised["message"]:
        return finding("data.reward-source", call=call, raised=raised, file_key=file_key)
    is_call = "unexpected keyword argument" in raised["message"] or "positional argument" in raised["message"]
    case = "arguments" if is_call else "answer"
    return finding(f"data.reward-raises.{case}", where=where, call=call, raised=raised)
