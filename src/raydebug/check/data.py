"""Stage `data`: files, rows, columns, prompt lengths and the reward function, as the trainer will read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raydebug.check import config as config_rules
from raydebug.check import images
from raydebug.check.files import HOW, judge_columns, spelled
from raydebug.check.probes import Facts
from raydebug.check.target import Target
from raydebug.findings import Finding, error, note, warning
from raydebug.settings.flavours import numbers
from raydebug.trainers.config import TrainingConfig, value_at
from raydebug.trainers.verl.config_files import as_hydra_reads

BUDGET_S = 10.0
# The columns that a reward needs. Source: verl 0.9.1 experimental/reward_loop/reward_manager/naive.py.
NEEDED_BY_REWARD = ("data_source", "reward_model")
MAKE_ONE = "`raydebug tiny dataset DIR` makes one that is right, to compare with"
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
    if target.checks.rules is None:
        return [*found, *_files_of_any_kind(target, facts), *judge_columns(target, facts)]
    if named := config.get("data_class"):
        # Source: verl 0.9.1 utils/dataset/rl_dataset.py get_dataset_class. It may read what it likes.
        found += [replace(finding, severity="warning") for finding in _files_of_any_kind(target, facts)]
        key = config.keys["data_class"]
        why = f"{key}={named}: a class of the command's own reads it"
        return [*found, note("check.not-run", "not run: what is in the data", why=why, fix=HOW)]
    found += _files(config, facts["splits"])
    if any(finding.severity == "error" and finding.code.startswith("data.") for finding in found):
        return found  # columns and rows of what cannot be read
    is_known = config_rules.is_release(target, facts)
    needed = NEEDED_BY_REWARD if is_known and facts["reward"]["manager"] in SAME_CALL else ()
    found += _columns(config, facts["splits"], needed)
    found += images.judge_rows(config, facts["images"])
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


def _files(config: TrainingConfig, splits: Mapping[str, list[Mapping[str, Any]]]) -> Iterator[Finding]:
    for split, files in splits.items():
        key = config.keys[f"{split}_data"]
        if not files and value_at(config.values, key, splits) is not splits:
            yield error(
                "data.file-missing",
                f"{key} names no file",
                why="the trainer builds both data sets before its first step",
                fix=f"{key}=PATH; {MAKE_ONE}",
            )
        for file in files:
            yield from _file(key, file)


def _file(key: str, file: Mapping[str, Any], example: str = f"; {MAKE_ONE}") -> Iterator[Finding]:
    path = file["path"]
    if file["remote"] or file.get("absent"):
        yield note(
            "data.file-missing",
            f"{key}: {path} is {'fetched by the trainer' if file['remote'] else 'not here'}; it was not looked at",
            why="a check fetches nothing" if file["remote"] else "--elsewhere: it may be where the training runs",
            fix="copy it here to have it checked",
        )
    elif not file["exists"]:
        folder = file.get("beside")
        beside = [name for name in folder or [] if name.endswith((".parquet", ".jsonl", ".json"))]
        none = "its folder is not there either" if folder is None else "its folder holds no data file"
        yield error(
            "data.file-missing",
            f"{key}: there is no file {path}",
            why="where the training runs; " + (f"beside it are {', '.join(beside[:5])}" if beside else none),
            fix=f"{key}=PATH, as the cluster sees it (containers see your project as /workspace){example}",
        )
    elif not file["is_file"]:
        inside = [as_hydra_reads(Path(path, name)) for name in file.get("holds", []) if name.endswith(".parquet")]
        shown = inside if len(inside) <= 3 else [*inside[:3], "..."]
        yield error(
            "data.not-a-file",
            f"{key}: {path} is a folder",
            why="verl reads files that end in .parquet, .json or .jsonl, one by one"
            + (f"; it holds {len(inside)} of them" if inside else ""),
            fix=f"{key}=[{','.join(shown)}]" if inside else f"{key}=FILE.parquet",
            overrides={key: f"[{','.join(inside)}]"} if inside else {},
        )
    elif "format" in file:
        yield error(
            "data.format",
            f"{key}: {path} ends in {file['format']}",
            why="verl reads .parquet, .json and .jsonl: 'Unsupported file format'",
            fix="write it as parquet: pandas.read_csv(...).to_parquet(...)",
        )
    elif "unreadable" in file:
        yield error(
            "data.unreadable",
            f"{key}: {path} cannot be read",
            why=f"{file['unreadable']} ({file['bytes']} bytes)",
            fix="write or copy it again, whole",
        )


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
            yield error(
                "data.columns-differ",
                f"the files of {config.keys[f'{split}_data']} have different columns",
                why="; ".join(f"{file['path']}: {', '.join(file['columns'])}" for file in read)[:300],
                fix="write them with the same columns; verl puts them one behind the other",
            )


def _columns_of(
    key: str, file: Mapping[str, Any], prompt: str, prompt_key: str, needed: Sequence[str]
) -> Iterator[Finding]:
    columns: Mapping[str, str] = file["columns"]
    has = f"{file['path']} has {', '.join(columns) or 'no column'}"
    if prompt not in columns:
        other = next((name for name in ("prompt", "messages", "raw_prompt") if name in columns), None)
        yield error(
            "data.column-missing",
            f"{key}: there is no column '{prompt}'",
            why=f"{has}; {prompt_key} names it",
            fix=f"{prompt_key}={other}" if other else f"add it: a list of messages; {MAKE_ONE}",
            overrides={prompt_key: other} if other else {},
        )
    elif "role" not in columns[prompt] or not columns[prompt].startswith(("list", "large_list")):
        yield error(
            "data.column-type",
            f"{key}: the column '{prompt}' is {columns[prompt]}, not a list of messages",
            why="verl renders it with the chat template: [{role: user, content: ...}]",
            fix=f"write it as [{{'role': 'user', 'content': TEXT}}] in each row; {MAKE_ONE}",
        )
    for name in needed:
        if name not in columns:
            yield error(
                "data.column-missing",
                f"{key}: there is no column '{name}'",
                why=f"{has}; verl's reward manager reads it at the first step: KeyError",
                fix=f"add it{'' if name == 'data_source' else ': {style, ground_truth}'}; {MAKE_ONE}",
            )
    held = columns.get("reward_model") if needed else None
    if held is not None and "ground_truth" not in held:
        yield error(
            "data.column-type",
            f"{key}: the column 'reward_model' is {held}",
            why="verl reads reward_model['ground_truth'] for each answer",
            fix=f"write it as {{'style': 'rule', 'ground_truth': ANSWER}}; {MAKE_ONE}",
        )
    extra = columns.get("extra_info")
    if extra not in (None, "null") and not extra.startswith("struct"):
        yield error(
            "data.column-type",
            f"{key}: the column 'extra_info' is {extra}",
            why="verl asks it for 'index' and 'tools_kwargs': AttributeError on anything but a mapping",
            fix="write it as {'index': N}, or leave it out",
        )


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
        yield error(
            "data.too-few-rows",
            f"{left} rows of training data, and a batch takes {wanted}",
            why=(f"{dropped} of {train} are longer than max_prompt_length and filtered out; " if left != train else "")
            + "the loader drops what does not fill a batch: it yields nothing (StopIteration, or 0 steps)",
            fix="" if smaller else f"more rows, or a smaller {config.keys['train_batch_size']}",
            overrides=smaller,
        )
    if rows["val"] == 0 and not remote["val"]:
        yield error(
            "data.too-few-rows",
            "the validation data has no rows",
            why="its loader takes all rows as one batch: 'batch_size should be a positive integer value, but got 0'",
            fix=f"{config.keys['val_data']}=PATH; the training file will do",
        )


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
        yield note(
            "data.lengths-unknown",
            "the lengths of the prompts were not measured",
            why=lengths["unknown"],
            fix="see what stage `model` says",
        )
        return
    if "refused" in lengths:
        yield error(
            "data.prompt-template",
            f"the chat template cannot render the prompt of row {lengths['row']}",
            why=f"{lengths['refused']}; its roles are {', '.join(map(str, lengths['roles']))}",
            fix=f"use roles that the template knows, or set {config.keys['chat_template']}",
        )
        return
    key, limit = config.keys["prompt_tokens"], config.get("prompt_tokens")
    if not lengths["too_long"]:
        return
    share = f"{lengths['too_long']} of {lengths['measured']} prompts have more than max_prompt_length={limit} tokens"
    longest = f"the longest has {lengths['longest']} (row {lengths['longest_row']})"
    if lengths.get("image_tokens"):
        longest += f"; the images of one take up to {lengths['image_tokens']} of them"
    if config.get("filter_long_prompts"):
        yield warning(
            "data.prompt-too-long",
            f"{share} and are left out",
            why=f"{config.keys['filter_long_prompts']}=True; {longest}",
            fix=f"{key}={lengths['longest']} keeps them",
        )
    else:
        yield error(
            "data.prompt-too-long",
            share,
            why=f"{_of_long_prompts(version, config)}; {longest}",
            fix=f"{key}={lengths['longest']}, or {config.keys['filter_long_prompts']}=True",
            overrides={key: str(lengths["longest"])},
        )


def _of_long_prompts(version: str, config: TrainingConfig) -> str:
    """Return what the trainer does with prompts that are too long.

    Source: verl 0.4.1 to 0.6.1 utils/torch_functional.py postprocess_data; from 0.7.0 on rl_dataset.py passes no
    truncation to it.
    """
    if not version or numbers(version) >= (0, 7):
        return "verl cuts off their beginning, whatever data.truncation says"
    kept = config.get("truncation")
    if kept == "error":
        return f"verl {version} ends with NotImplementedError at the first of them ({config.keys['truncation']}=error)"
    return f"verl {version} cuts them ({config.keys['truncation']}={kept})"


def judge_reward(tried: Mapping[str, Any], keys: Mapping[str, str]) -> Iterator[Finding]:
    """Return the findings about a reward function that was tried on the first rows (`probes/data.py`). Pure."""
    file_key, name_key = keys["reward_file"], keys["reward_name"]
    where = f"{tried['path']}:{tried['name']}" if tried["path"] else "verl's own reward"
    if "missing" in tried:
        yield error(
            "data.reward-missing",
            f"there is no file {tried['missing']}",
            why=f"{file_key} names it; a relative path is one of the folder that the command runs in",
            fix=f"{file_key}=FILE, as the cluster sees it (containers see your project as /workspace)",
        )
    elif "missing_function" in tried:
        others = tried["missing_function"]
        yield error(
            "data.reward-missing",
            f"{tried['path']} has no function {tried['name']}",
            why=f"it has {', '.join(others) or 'none'}",
            fix=f"{name_key}={others[0] if len(others) == 1 else 'NAME'}",
            overrides={f"{name_key}": others[0]} if len(others) == 1 else {},
        )
    elif "import" in tried:
        yield _import(tried["import"], where)
    elif tried["manager"] in SAME_CALL:
        for call in tried["calls"]:
            if "raised" in call or not call.get("usable", True):
                yield _call(call, where, file_key)
                return  # the other rows mostly say the same


def _import(failure: Mapping[str, str], where: str) -> Finding:
    missing = failure["message"].partition("'")[2].partition("'")[0] if failure["type"] == "ModuleNotFoundError" else ""
    return error(
        "data.reward-import",
        f"{where} cannot be imported: {failure['type']}: {failure['message']}",
        why=f"{failure['where']} raised it; each reward worker imports the file",
        fix=f"pip install {missing} in the cluster's environment" if missing else f"fix {failure['where']}",
    )


def _call(call: Mapping[str, Any], where: str, file_key: str) -> Finding:
    if "raised" not in call:
        return error(
            "data.reward-value",
            f"{where} returns {call['value']} for row {call['row']}",
            why="verl takes a number, or a dict with a number at 'score'; nan and inf spoil the whole batch",
            fix="return a float, or {'score': float}",
        )
    raised = call["raised"]
    if raised["type"] == "NotImplementedError" and "data_source" in raised["message"]:
        return error(
            "data.reward-source",
            f"verl has no reward for data_source '{call['source']}'",
            why=f"{raised['message']} (verl/utils/reward_score)",
            fix=f"{file_key}=FILE with a function compute_score; `raydebug tiny dataset DIR` writes one",
        )
    unexpected = "unexpected keyword argument" in raised["message"] or "positional argument" in raised["message"]
    return error(
        "data.reward-raises",
        f"{where} fails on row {call['row']}: {raised['type']}: {raised['message']}",
        why=f"{raised['where']} raised it for the answer 'The answer is 1.'",
        fix="verl calls it with data_source, solution_str, ground_truth and extra_info by name; take **kwargs as well"
        if unexpected
        else f"fix {raised['where']}: answers of a model can be anything, the empty one too",
    )
