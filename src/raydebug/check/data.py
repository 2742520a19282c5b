"""Stage `data`: files, rows, columns, prompt lengths and the reward function, as the trainer will meet them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raydebug.check import command, reward
from raydebug.check.ask import ask
from raydebug.check.finding import Finding, error, note, warning
from raydebug.check.stage import Checked
from raydebug.check.subject import Subject

BUDGET_S = 10.0
# The columns that verl reads, with the key of the config that names one. Source: verl 0.9.1
# utils/dataset/rl_dataset.py (prompt_key), experimental/reward_loop/reward_manager/naive.py (the other two by name).
NAMED = {"prompt": "data.prompt_key"}
NEEDED_BY_REWARD = ("data_source", "reward_model")
MAKE_ONE = "`raydebug tiny dataset DIR` makes one that is right, to compare with"

Facts = Mapping[str, Any]


def check(subject: Subject) -> Checked:
    """Ask the cluster's Python for the data behind the command, and judge it."""
    facts = ask(subject, "data", budget_s=BUDGET_S, **subject.as_request())
    return Checked(judge(subject, facts), tuple(facts.get("read", ())))


def judge(subject: Subject, facts: Facts) -> list[Finding]:
    """Return the findings about a command's data. Pure."""
    if "config_error" in facts:
        return [command.refused(facts["config_error"], subject.overrides)]
    config = facts["config"]
    found = command.judge(config, subject, facts)
    found += _files(facts["splits"])
    if any(finding.severity == "error" and finding.code.startswith("data.") for finding in found):
        return found  # columns and rows of what cannot be read
    found += _columns(config, facts["splits"])
    found += _rows(config, facts)
    found += _lengths(config, facts["lengths"])
    found += reward.judge(facts["reward"])
    return found


def _files(splits: Mapping[str, list[Mapping[str, Any]]]) -> Iterator[Finding]:
    for split, files in splits.items():
        key = f"data.{split}_files"
        if not files:
            yield error(
                "data.file-missing",
                f"{key} names no file",
                why="the trainer builds both data sets before its first step",
                fix=f"{key}=PATH; {MAKE_ONE}",
            )
        for file in files:
            yield from _file(key, file)


def _file(key: str, file: Mapping[str, Any]) -> Iterator[Finding]:
    path = file["path"]
    if file["remote"]:
        yield note(
            "data.file-missing",
            f"{key}: {path} is fetched by the trainer; it was not looked at",
            why="a check fetches nothing",
            fix="copy it here to have it checked",
        )
    elif not file["exists"]:
        beside = [name for name in file.get("beside") or [] if name.endswith((".parquet", ".jsonl", ".json"))]
        yield error(
            "data.file-missing",
            f"{key}: there is no file {path}",
            why="where the training runs; "
            + (f"beside it are {', '.join(beside[:5])}" if beside else "its folder holds no data file"),
            fix=f"{key}=PATH, as the cluster sees it (containers see your project as /workspace); {MAKE_ONE}",
        )
    elif not file["is_file"]:
        inside = [name for name in file.get("holds", []) if name.endswith(".parquet")]
        yield error(
            "data.not-a-file",
            f"{key}: {path} is a folder",
            why="verl reads files that end in .parquet, .json or .jsonl, one by one"
            + (f"; it holds {len(inside)} of them" if inside else ""),
            fix=f"{key}=[{','.join(f'{path}/{name}' for name in inside[:3])}]" if inside else f"{key}=FILE.parquet",
            overrides={key: f"[{','.join(f'{path}/{name}' for name in inside)}]"} if inside else {},
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


def _columns(config: Mapping[str, Any], splits: Mapping[str, list[Mapping[str, Any]]]) -> Iterator[Finding]:
    prompt = config["data"]["prompt_key"]
    for split, files in splits.items():
        read = [file for file in files if "columns" in file]
        for file in read:
            yield from _columns_of(f"data.{split}_files", file, prompt)
        kinds = {tuple(sorted(file["columns"])) for file in read}
        if len(kinds) > 1:
            yield error(
                "data.columns-differ",
                f"the files of data.{split}_files have different columns",
                why="; ".join(f"{file['path']}: {', '.join(file['columns'])}" for file in read)[:300],
                fix="write them with the same columns; verl puts them one behind the other",
            )


def _columns_of(key: str, file: Mapping[str, Any], prompt: str) -> Iterator[Finding]:
    columns: Mapping[str, str] = file["columns"]
    has = f"{file['path']} has {', '.join(columns) or 'no column'}"
    if prompt not in columns:
        other = next((name for name in ("prompt", "messages", "raw_prompt") if name in columns), None)
        yield error(
            "data.column-missing",
            f"{key}: there is no column '{prompt}'",
            why=f"{has}; data.prompt_key names it",
            fix=f"data.prompt_key={other}" if other else f"add it: a list of messages; {MAKE_ONE}",
            overrides={"data.prompt_key": other} if other else {},
        )
    elif "role" not in columns[prompt] or not columns[prompt].startswith(("list", "large_list")):
        yield error(
            "data.column-type",
            f"{key}: the column '{prompt}' is {columns[prompt]}, not a list of messages",
            why="verl renders it with the chat template: [{role: user, content: ...}]",
            fix=f"write it as [{{'role': 'user', 'content': TEXT}}] in each row; {MAKE_ONE}",
        )
    for name in NEEDED_BY_REWARD:
        if name not in columns:
            yield error(
                "data.column-missing",
                f"{key}: there is no column '{name}'",
                why=f"{has}; verl's reward manager reads it at the first step: KeyError",
                fix=f"add it{'' if name == 'data_source' else ': {style, ground_truth}'}; {MAKE_ONE}",
            )
    held = columns.get("reward_model")
    if held is not None and "ground_truth" not in held:
        yield error(
            "data.column-type",
            f"{key}: the column 'reward_model' is {held}",
            why="verl reads reward_model['ground_truth'] for each answer",
            fix=f"write it as {{'style': 'rule', 'ground_truth': ANSWER}}; {MAKE_ONE}",
        )
    extra = columns.get("extra_info")
    if extra is not None and not extra.startswith("struct"):
        yield error(
            "data.column-type",
            f"{key}: the column 'extra_info' is {extra}",
            why="verl asks it for 'index' and 'tools_kwargs': AttributeError on anything but a mapping",
            fix="write it as {'index': N}, or leave it out",
        )


def _rows(config: Mapping[str, Any], facts: Facts) -> Iterator[Finding]:
    data = config["data"]
    rows = {split: sum(file.get("rows", 0) for file in files) for split, files in facts["splits"].items()}
    remote = {split: any(file["remote"] for file in files) for split, files in facts["splits"].items()}
    limit = data.get("train_max_samples") or -1
    train = min(rows["train"], limit) if limit > 0 else rows["train"]
    wanted = data.get("gen_batch_size") or data["train_batch_size"]
    if not isinstance(wanted, int) or remote["train"]:
        return
    lengths = facts["lengths"]
    dropped = lengths.get("too_long", 0) if data.get("filter_overlong_prompts") else 0
    whole = lengths.get("measured") == rows["train"]
    left = train - dropped if whole else train
    if left < wanted:
        smaller = _fitting(config, left)
        yield error(
            "data.too-few-rows",
            f"{left} rows of training data, and a batch takes {wanted}",
            why=(f"{dropped} of {train} are longer than max_prompt_length and filtered out; " if left != train else "")
            + "the loader drops what does not fill a batch: it yields nothing (StopIteration, or 0 steps)",
            fix=" ".join(f"{key}={value}" for key, value in smaller.items())
            if smaller
            else "more rows, or a smaller data.train_batch_size",
            overrides=smaller,
        )
    if rows["val"] == 0 and not remote["val"]:
        yield error(
            "data.too-few-rows",
            "the validation data has no rows",
            why="its loader takes all rows as one batch: 'batch_size should be a positive integer value, but got 0'",
            fix="data.val_files=PATH; the training file will do",
        )


def _fitting(config: Mapping[str, Any], rows: int) -> dict[str, str | None]:
    """Return overrides that make the batch as large as the rows allow; none where nothing does."""
    ranks = config["trainer"]["n_gpus_per_node"] * config["trainer"]["nnodes"]
    batch = rows // ranks * ranks
    if batch < 1:
        return {}
    actor = config["actor_rollout_ref"]["actor"]
    smaller: dict[str, str | None] = {"data.train_batch_size": str(batch)}
    if actor["ppo_mini_batch_size"] > batch or batch % actor["ppo_mini_batch_size"]:
        smaller["actor_rollout_ref.actor.ppo_mini_batch_size"] = str(batch)
    return smaller


def _lengths(config: Mapping[str, Any], lengths: Mapping[str, Any]) -> Iterator[Finding]:
    data = config["data"]
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
            fix="use roles that the template knows, or set actor_rollout_ref.model.custom_chat_template",
        )
        return
    limit = data["max_prompt_length"]
    if not lengths["too_long"]:
        return
    share = f"{lengths['too_long']} of {lengths['measured']} prompts have more than max_prompt_length={limit} tokens"
    longest = f"the longest has {lengths['longest']} (row {lengths['longest_row']})"
    if data.get("filter_overlong_prompts"):
        yield warning(
            "data.prompt-too-long",
            f"{share} and are left out",
            why=f"data.filter_overlong_prompts=True; {longest}",
            fix=f"data.max_prompt_length={lengths['longest']} keeps them",
        )
    else:
        yield error(
            "data.prompt-too-long",
            share,
            why=f"verl 0.9 cuts off their beginning, whatever data.truncation says; {longest}",
            fix=f"data.max_prompt_length={lengths['longest']}, or data.filter_overlong_prompts=True",
            overrides={"data.max_prompt_length": str(lengths["longest"])},
        )
