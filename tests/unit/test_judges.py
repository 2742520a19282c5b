"""The rules of `raydebug check` about data, rewards, models, weight files and vLLM: exact findings, without torch."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raydebug.check import data, engine, images, model, stages
from raydebug.check.probes.data import try_reward
from raydebug.check.target import Target
from raydebug.cluster.runner import LocalRunner
from raydebug.findings import Finding, error, note, warning
from raydebug.settings.files import environment_dir
from raydebug.trainers.config import TrainingConfig
from raydebug.trainers.registry import recognise

COMMAND = ["python", "-m", "verl.trainer.main_ppo"]
TARGET = Target(tuple(COMMAND), recognise(COMMAND), Path(), LocalRunner("python"), {}, {})
CONFIG: dict[str, Any] = {
    "data": {
        "train_batch_size": 8,
        "max_prompt_length": 64,
        "max_response_length": 64,
        "gen_batch_size": None,
        "prompt_key": "prompt",
        "train_max_samples": -1,
        "filter_overlong_prompts": False,
    },
    "trainer": {"n_gpus_per_node": 2, "nnodes": 1, "use_v1": True, "logger": ["console"], "total_epochs": 1},
    "algorithm": {"adv_estimator": "grpo"},
    "critic": {"enable": None},
    "actor_rollout_ref": {
        "actor": {"ppo_mini_batch_size": 8, "ppo_micro_batch_size": None, "ppo_micro_batch_size_per_gpu": 4},
        "ref": {},
        "model": {"path": "m"},
        "rollout": {
            "name": "vllm",
            "n": 1,
            "tensor_model_parallel_size": 1,
            "log_prob_micro_batch_size": None,
            "log_prob_micro_batch_size_per_gpu": 4,
            "engine_kwargs": {"vllm": {"kv_cache_dtype": "fp7"}},
        },
    },
}
COLUMNS: dict[str, Any] = {
    "prompt": "list<element: struct<content: string, role: string>>",
    "data_source": "string",
    "reward_model": "struct<ground_truth: string, style: string>",
    "extra_info": "struct<index: int64>",
}
# What the probe `data` returns for a training that passes.
DATASET: dict[str, Any] = {
    "config": CONFIG,
    "variables": {},
    "gpus": 8,
    "verdict": None,
    "images": {"vision": False, "column": "images", "in_data": False, "others": [], "placeholders": 0, "images": 0},
    "splits": {
        "train": [
            {"path": "train.parquet", "exists": True, "is_file": True, "remote": False, "columns": COLUMNS, "rows": 16}
        ],
        "val": [
            {"path": "val.parquet", "exists": True, "is_file": True, "remote": False, "columns": COLUMNS, "rows": 16}
        ],
    },
    "lengths": {"measured": 16, "longest": 60, "longest_row": 3, "too_long": 0},
    "reward": {"path": None, "name": "compute_score", "manager": "naive", "calls": []},
    "trainer_version": "0.9.1",
    "program": "verl.trainer.main_ppo",
}
# What the probe `model` returns for a training that passes.
MODEL: dict[str, Any] = {
    "config": CONFIG,
    "trainer_version": "0.9.1",
    "variables": {},
    "path": "m",
    "folder": "m",
    "json": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "transformers_version": "5.9.0",
    "type_known": True,
    "class_known": True,
    "vllm": {"known": True, "until": None, "models": 300},
    "tokenizer": {"template": True, "says_it": True, "eos": 2, "largest_id": 999},
    "sizes": {
        "vocab_size": 1000,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
    },
    "layer_types": [],
    "has_flash_attention": True,
    "memory_bytes": 8589934592,
    "gpu_bytes": None,
    "shards": {
        "shards": [{"name": "a.safetensors", "bytes": 10}],
        "lost": [],
        "lost_count": 0,
        "embedding": [1000, 64],
        "layers": 2,
        "parameters": 1000,
        "others": [],
    },
}
NOWHERE = {"config": CONFIG, "variables": {}, "path": "m", "folder": None}
REFUSED = {"type": "ValueError", "message": "bad\nvalue"}
STARTED: dict[str, Any] = {"config": CONFIG, "phase": "engine", "phases": {"import": 9.0, "engine": 3.25}, "output": ""}
TYPE_ERROR = {
    "type": "TypeError",
    "message": "score() got an unexpected keyword argument 'extra_info'",
    "where": "r.py:4",
}


def changed(facts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return facts with some values changed; `a__0__b=1` sets facts["a"][0]["b"]."""
    facts = copy.deepcopy(facts)
    for path, value in changes.items():
        *parts, last = (int(part) if part.isdigit() else part for part in path.split("__"))
        node: Any = facts
        for part in parts:
            node = node[part]
        node[last] = value
    return facts


PLAIN = changed(CONFIG, actor_rollout_ref__rollout__engine_kwargs={})


def failed(
    message: str, kind: str = "ValueError", phase: str = "engine", config: dict[str, Any] = CONFIG
) -> dict[str, Any]:
    """Return what the probe `engine` returns when vLLM fails."""
    failure = {"type": kind, "message": message, "where": "vllm/x.py:7"}
    return {**STARTED, "config": config, "phase": phase, "failed": failure}


Cases = dict[str, tuple[dict[str, Any], list[Finding]]]
DATA: Cases = {
    "files that fit": ({}, []),
    "no file": (
        {"splits__train": [], "config__data__train_files": []},
        [
            error(
                "data.file-missing",
                "data.train_files names no file",
                why="the trainer builds both data sets before its first step",
                fix="data.train_files=PATH; `raydebug tiny dataset DIR` makes one that is right, to compare with",
            )
        ],
    ),
    "a remote file": (
        {"splits__train__0__remote": True, "splits__train__0__path": "hdfs://a/b.parquet"},
        [
            note(
                "data.file-missing",
                "data.train_files: hdfs://a/b.parquet is fetched by the trainer; it was not looked at",
                why="a check fetches nothing",
                fix="copy it here to have it checked",
            )
        ],
    ),
    "a missing file": (
        {
            "splits__train__0": {
                "path": "t.parquet",
                "exists": False,
                "is_file": False,
                "remote": False,
                "beside": ["x.parquet", "notes.txt"],
            }
        },
        [
            error(
                "data.file-missing",
                "data.train_files: there is no file t.parquet",
                why="where the training runs; beside it are x.parquet",
                fix="data.train_files=PATH, as the cluster sees it (containers see your project as /workspace);"
                " `raydebug tiny dataset DIR` makes one that is right, to compare with",
            )
        ],
    ),
    "a folder": (
        {
            "splits__train__0": {
                "path": "d",
                "exists": True,
                "is_file": False,
                "remote": False,
                "holds": ["a.parquet", "b.parquet", "c.txt"],
            }
        },
        [
            error(
                "data.not-a-file",
                "data.train_files: d is a folder",
                why="verl reads files that end in .parquet, .json or .jsonl, one by one; it holds 2 of them",
                fix="data.train_files=[d/a.parquet,d/b.parquet]",
                overrides={"data.train_files": "[d/a.parquet,d/b.parquet]"},
            )
        ],
    ),
    "a folder of many files, with a name that Hydra would not read": (
        {
            "splits__train__0": {
                "path": "d",
                "exists": True,
                "is_file": False,
                "remote": False,
                "holds": ["a (1).parquet", "b.parquet", "c.parquet", "d.parquet"],
            }
        },
        [
            error(
                "data.not-a-file",
                "data.train_files: d is a folder",
                why="verl reads files that end in .parquet, .json or .jsonl, one by one; it holds 4 of them",
                fix="data.train_files=['d/a (1).parquet',d/b.parquet,d/c.parquet,...]",
                overrides={"data.train_files": "['d/a (1).parquet',d/b.parquet,d/c.parquet,d/d.parquet]"},
            )
        ],
    ),
    "another format": (
        {"splits__train__0": {"path": "t.csv", "exists": True, "is_file": True, "remote": False, "format": ".csv"}},
        [
            error(
                "data.format",
                "data.train_files: t.csv ends in .csv",
                why="verl reads .parquet, .json and .jsonl: 'Unsupported file format'",
                fix="write it as parquet: pandas.read_csv(...).to_parquet(...)",
            )
        ],
    ),
    "an unreadable file": (
        {
            "splits__train__0": {
                "path": "t.parquet",
                "exists": True,
                "is_file": True,
                "remote": False,
                "unreadable": "Parquet magic bytes not found",
                "bytes": 12,
            }
        },
        [
            error(
                "data.unreadable",
                "data.train_files: t.parquet cannot be read",
                why="Parquet magic bytes not found (12 bytes)",
                fix="write or copy it again, whole",
            )
        ],
    ),
    "a missing column": (
        {
            "splits__train__0__columns": {
                **{k: v for k, v in COLUMNS.items() if k != "prompt"},
                "messages": COLUMNS["prompt"],
            }
        },
        [
            error(
                "data.column-missing",
                "data.train_files: there is no column 'prompt'",
                why="train.parquet has data_source, reward_model, extra_info, messages; data.prompt_key names it",
                fix="data.prompt_key=messages",
                overrides={"data.prompt_key": "messages"},
            )
        ],
    ),
    "prompts that are text": (
        {"splits__train__0__columns": {**COLUMNS, "prompt": "string"}},
        [
            error(
                "data.column-type",
                "data.train_files: the column 'prompt' is string, not a list of messages",
                why="verl renders it with the chat template: [{role: user, content: ...}]",
                fix="write it as [{'role': 'user', 'content': TEXT}] in each row; `raydebug tiny dataset DIR` makes"
                " one that is right, to compare with",
            )
        ],
    ),
    "no data_source": (
        {"splits__train__0__columns": {k: v for k, v in COLUMNS.items() if k != "data_source"}},
        [
            error(
                "data.column-missing",
                "data.train_files: there is no column 'data_source'",
                why="train.parquet has prompt, reward_model, extra_info; verl's reward manager reads it at the first"
                " step: KeyError",
                fix="add it; `raydebug tiny dataset DIR` makes one that is right, to compare with",
            )
        ],
    ),
    "no ground truth": (
        {"splits__train__0__columns": {**COLUMNS, "reward_model": "struct<style: string>"}},
        [
            error(
                "data.column-type",
                "data.train_files: the column 'reward_model' is struct<style: string>",
                why="verl reads reward_model['ground_truth'] for each answer",
                fix="write it as {'style': 'rule', 'ground_truth': ANSWER}; `raydebug tiny dataset DIR` makes one that"
                " is right, to compare with",
            )
        ],
    ),
    "extra_info that is text": (
        {"splits__train__0__columns": {**COLUMNS, "extra_info": "string"}},
        [
            error(
                "data.column-type",
                "data.train_files: the column 'extra_info' is string",
                why="verl asks it for 'index' and 'tools_kwargs': AttributeError on anything but a mapping",
                fix="write it as {'index': N}, or leave it out",
            )
        ],
    ),
    "extra_info that is empty in every row": ({"splits__train__0__columns": {**COLUMNS, "extra_info": "null"}}, []),
    "a number that is a word, and few rows": (
        {"splits__train__0__rows": 5, "config__data__train_max_samples": "1k"},
        [
            error(
                "command.value",
                "data.train_max_samples=1k is not a whole number",
                why="Hydra accepts any word; verl computes with it and raises TypeError or ValueError",
                fix="data.train_max_samples=NUMBER (an empty shell variable gives an empty value)",
            )
        ],
    ),
    "fewer rows than a batch": (
        {"splits__train__0__rows": 5},
        [
            error(
                "data.too-few-rows",
                "5 rows of training data, and a batch takes 8",
                why="the loader drops what does not fill a batch: it yields nothing (StopIteration, or 0 steps)",
                fix="data.train_batch_size=4 actor_rollout_ref.actor.ppo_mini_batch_size=4",
                overrides={"data.train_batch_size": "4", "actor_rollout_ref.actor.ppo_mini_batch_size": "4"},
            )
        ],
    ),
    "rows that are filtered out": (
        {"config__data__filter_overlong_prompts": True, "lengths__too_long": 10},
        [
            error(
                "data.too-few-rows",
                "6 rows of training data, and a batch takes 8",
                why="10 of 16 are longer than max_prompt_length and filtered out; the loader drops what does not fill"
                " a batch: it yields nothing (StopIteration, or 0 steps)",
                fix="data.train_batch_size=6 actor_rollout_ref.actor.ppo_mini_batch_size=6",
                overrides={"data.train_batch_size": "6", "actor_rollout_ref.actor.ppo_mini_batch_size": "6"},
            ),
            warning(
                "data.prompt-too-long",
                "10 of 16 prompts have more than max_prompt_length=64 tokens and are left out",
                why="data.filter_overlong_prompts=True; the longest has 60 (row 3)",
                fix="data.max_prompt_length=60 keeps them",
            ),
        ],
    ),
    "long rows, of which few are taken": (
        {
            "config__data__filter_overlong_prompts": True,
            "config__data__train_max_samples": 10,
            "lengths__too_long": 10,
        },
        [
            warning(
                "data.prompt-too-long",
                "10 of 16 prompts have more than max_prompt_length=64 tokens and are left out",
                why="data.filter_overlong_prompts=True; the longest has 60 (row 3)",
                fix="data.max_prompt_length=60 keeps them",
            )
        ],
    ),
    "no validation rows": (
        {"splits__val__0__rows": 0},
        [
            error(
                "data.too-few-rows",
                "the validation data has no rows",
                why="its loader takes all rows as one batch: 'batch_size should be a positive integer value, but got"
                " 0'",
                fix="data.val_files=PATH; the training file will do",
            )
        ],
    ),
    "a refused role": (
        {"lengths": {"row": 2, "refused": "TemplateError: no", "roles": ["tool"]}},
        [
            error(
                "data.prompt-template",
                "the chat template cannot render the prompt of row 2",
                why="TemplateError: no; its roles are tool",
                fix="use roles that the template knows, or set actor_rollout_ref.model.custom_chat_template",
            )
        ],
    ),
    "lengths that were not measured": (
        {"lengths": {"unknown": "the tokenizer has no chat template"}},
        [
            note(
                "data.lengths-unknown",
                "the lengths of the prompts were not measured",
                why="the tokenizer has no chat template",
                fix="see what stage `model` says",
            )
        ],
    ),
    "long prompts": (
        {"lengths__too_long": 2, "lengths__longest": 90},
        [
            error(
                "data.prompt-too-long",
                "2 of 16 prompts have more than max_prompt_length=64 tokens",
                why="verl cuts off their beginning, whatever data.truncation says; the longest has 90 (row 3)",
                fix="data.max_prompt_length=90, or data.filter_overlong_prompts=True",
                overrides={"data.max_prompt_length": "90"},
            )
        ],
    ),
    "long prompts with verl 0.4": (
        {
            "lengths__too_long": 2,
            "lengths__longest": 90,
            "trainer_version": "0.4.1",
            "config__data__truncation": "error",
        },
        [
            error(
                "data.prompt-too-long",
                "2 of 16 prompts have more than max_prompt_length=64 tokens",
                why="verl 0.4.1 ends with NotImplementedError at the first of them (data.truncation=error);"
                " the longest has 90 (row 3)",
                fix="data.max_prompt_length=90, or data.filter_overlong_prompts=True",
                overrides={"data.max_prompt_length": "90"},
            )
        ],
    ),
    "verl's own refusal": (
        {
            "verdict": {
                "type": "ValueError",
                "message": "no such loss\nmore",
                "where": "a.py:3",
                "part": "actor_rollout_ref.actor.policy_loss.loss_mode",
            }
        },
        [
            error(
                "command.refused",
                "verl refuses actor_rollout_ref.actor.policy_loss.loss_mode: ValueError: no such loss",
                why="verl looks it up when its workers are up (a.py:3)",
                fix="change the setting that it names",
            )
        ],
    ),
}


@pytest.mark.parametrize(("changes", "findings"), DATA.values(), ids=DATA)
def test_data(changes: dict[str, Any], findings: list[Finding]) -> None:
    """Each fault of the data is one finding with its reason and its fix; data that fits has none."""
    assert data.judge(TARGET, changed(DATASET, **changes)) == findings


REWARDS: Cases = {
    "no file": (
        {"missing": "r.py"},
        [
            error(
                "data.reward-missing",
                "there is no file r.py",
                why="reward.custom_reward_function.path names it; a relative path is one of the folder that the"
                " command runs in",
                fix="reward.custom_reward_function.path=FILE, as the cluster sees it (containers see your project as"
                " /workspace)",
            )
        ],
    ),
    "one other function": (
        {"missing_function": ["reward"]},
        [
            error(
                "data.reward-missing",
                "r.py has no function score",
                why="it has reward",
                fix="reward.custom_reward_function.name=reward",
                overrides={"reward.custom_reward_function.name": "reward"},
            )
        ],
    ),
    "other functions": (
        {"missing_function": ["a", "b"]},
        [
            error(
                "data.reward-missing",
                "r.py has no function score",
                why="it has a, b",
                fix="reward.custom_reward_function.name=NAME",
            )
        ],
    ),
    "a missing package": (
        {"import": {"type": "ModuleNotFoundError", "message": "No module named 'sympy'", "where": "r.py:1"}},
        [
            error(
                "data.reward-import",
                "r.py:score cannot be imported: ModuleNotFoundError: No module named 'sympy'",
                why="r.py:1 raised it; each reward worker imports the file",
                fix="pip install sympy in the cluster's environment",
            )
        ],
    ),
    "a syntax error": (
        {"import": {"type": "SyntaxError", "message": "invalid", "where": "r.py:2"}},
        [
            error(
                "data.reward-import",
                "r.py:score cannot be imported: SyntaxError: invalid",
                why="r.py:2 raised it; each reward worker imports the file",
                fix="fix r.py:2",
            )
        ],
    ),
    "no number": (
        {"calls": [{"row": 0, "usable": False, "value": "nan", "source": "x"}]},
        [
            error(
                "data.reward-value",
                "r.py:score returns nan for row 0",
                why="verl takes a number, or a dict with a number at 'score'; nan and inf spoil the whole batch",
                fix="return a float, or {'score': float}",
            )
        ],
    ),
    "unknown arguments": (
        {"calls": [{"row": 1, "raised": TYPE_ERROR, "source": "x"}]},
        [
            error(
                "data.reward-raises",
                "r.py:score fails on row 1: TypeError: score() got an unexpected keyword argument 'extra_info'",
                why="r.py:4 raised it for the answer 'The answer is 1.'",
                fix="verl calls it with data_source, solution_str, ground_truth and extra_info by name; take **kwargs"
                " as well",
            )
        ],
    ),
    "it raises": (
        {"calls": [{"row": 1, "raised": {"type": "KeyError", "message": "'x'", "where": "r.py:9"}, "source": "x"}]},
        [
            error(
                "data.reward-raises",
                "r.py:score fails on row 1: KeyError: 'x'",
                why="r.py:9 raised it for the answer 'The answer is 1.'",
                fix="fix r.py:9: answers of a model can be anything, the empty one too",
            )
        ],
    ),
    "an unknown data source": (
        {
            "path": None,
            "calls": [
                {
                    "row": 0,
                    "raised": {
                        "type": "NotImplementedError",
                        "message": "Reward function is not implemented for data_source='mine'",
                        "where": "v.py:1",
                    },
                    "source": "mine",
                }
            ],
        },
        [
            error(
                "data.reward-source",
                "verl has no reward for data_source 'mine'",
                why="Reward function is not implemented for data_source='mine' (verl/utils/reward_score)",
                fix="reward.custom_reward_function.path=FILE with a function compute_score; `raydebug tiny dataset"
                " DIR` writes one",
            )
        ],
    ),
    "a number": ({"calls": [{"row": 0, "usable": True, "value": "1.0"}]}, []),
    "a manager of another kind": ({"manager": "own", "calls": [{"row": 0, "usable": False, "value": "x"}]}, []),
}


SCORED = {"manager": "naive", "calls": [{"row": 0, "raised": TYPE_ERROR, "source": "s"}]}
NO_SOURCE = {k: v for k, v in COLUMNS.items() if k != "data_source"}


@pytest.mark.parametrize(
    ("version", "path", "codes"),
    [
        ("0.9.1", None, ["data.column-missing", "data.reward-raises"]),
        ("0.3.1.dev", None, []),
        ("0.3.1.dev", "r.py", ["data.reward-raises"]),
    ],
)
def test_the_reward_of_a_fork(version: str, path: str | None, codes: list[str]) -> None:
    """A fork may score by columns and functions of its own: only a function that the command names is judged."""
    facts = changed(
        DATASET,
        trainer_version=version,
        reward={**SCORED, "path": path, "name": "f"},
        splits__val__0__columns=NO_SOURCE,
    )
    assert [one.code for one in data.judge(TARGET, facts)] == codes


def test_a_class_of_its_own_reads_the_data() -> None:
    """Where the command names a class that reads its data, columns and formats are its own; it is said."""
    named = {"config__data__custom_cls": {"path": "own.py", "name": "Own"}}
    facts = changed(DATASET, **named, splits__train__0__columns={}, splits__val__0__exists=False)
    assert [(one.severity, one.code) for one in data.judge(TARGET, facts)] == [
        ("warning", "data.file-missing"),
        ("note", "check.not-run"),
    ]


@pytest.mark.parametrize(("changes", "findings"), REWARDS.values(), ids=REWARDS)
def test_reward(changes: dict[str, Any], findings: list[Finding]) -> None:
    """Each fault of a reward function is one finding with its reason and its fix."""
    tried = {"path": "r.py", "name": "score", "manager": "naive", "calls": [], **changes}
    assert list(data.judge_reward(tried, TARGET.checks.keys)) == findings


MODELS: Cases = {
    "a model that fits": (MODEL, []),
    "remote": (
        {**NOWHERE, "remote": True, "path": "s3://a"},
        [
            warning(
                "model.path",
                "s3://a is fetched by the trainer; it was not looked at",
                why="a check fetches nothing",
                fix="copy it here and name the folder with actor_rollout_ref.model.path to have it checked",
            )
        ],
    ),
    "a file": (
        {**NOWHERE, "is_file": True, "path": "m/config.json"},
        [
            error(
                "model.path",
                "actor_rollout_ref.model.path: m/config.json is a file",
                why="transformers and vLLM want the folder with config.json in it",
                fix="actor_rollout_ref.model.path=m",
                overrides={"actor_rollout_ref.model.path": "m"},
            )
        ],
    ),
    "a hub name that is not cached": (
        {**NOWHERE, "is_hub": True, "path": "org/m"},
        [
            error(
                "model.not-cached",
                "org/m is neither a folder here nor in the Hub's cache",
                why="a check fetches nothing, and with HF_HUB_OFFLINE=1 the training cannot either",
                fix="`hf download org/m` where the training runs (HF_TOKEN for a gated one), or"
                " actor_rollout_ref.model.path=FOLDER",
            )
        ],
    ),
    "no folder": (
        NOWHERE,
        [
            error(
                "model.path",
                "actor_rollout_ref.model.path: there is no folder m",
                why="where the training runs; transformers would take it for a name on the Hub: 'Repo id must be ...'",
                fix="actor_rollout_ref.model.path=FOLDER, as the cluster sees it (containers see your project as"
                " /workspace)",
            )
        ],
    ),
    "a broken config.json": (
        {**NOWHERE, "folder": "m", "config_broken": "Expecting value"},
        [
            error(
                "model.config", "m/config.json cannot be read", why="Expecting value", fix="copy the model again, whole"
            )
        ],
    ),
    "no config.json": (
        {**NOWHERE, "folder": "m", "files": ["a.txt"]},
        [
            error(
                "model.config",
                "m has no config.json",
                why="it holds a.txt",
                fix="copy the whole folder of the model, or name the one with config.json in it",
            )
        ],
    ),
    "a checkpoint": (
        {**NOWHERE, "folder": "m", "files": ["model_world_size_2_rank_0.pt"]},
        [
            error(
                "model.config",
                "m has no config.json",
                why="it holds model_world_size_2_rank_0.pt",
                fix="python -m verl.model_merger merge --backend fsdp ... makes a model of a checkpoint of verl",
            )
        ],
    ),
    "its own code": (
        changed(
            MODEL,
            remote_code={"AutoConfig": "x.Y"},
            type_known=False,
            json={"architectures": ["Y"], "model_type": "y", "auto_map": {}},
        ),
        [
            error(
                "model.remote-code",
                "m needs code of its own: x.Y",
                why="transformers 5.9.0 has no model_type 'y'; a check does not run it",
                fix="read that code, then actor_rollout_ref.model.trust_remote_code=True data.trust_remote_code=True;"
                " the check runs it then too",
            )
        ],
    ),
    "two architectures": (
        changed(MODEL, json={"architectures": ["A", "B"]}),
        [
            error(
                "model.config",
                "config.json names 2 architectures",
                why="verl asserts 'Expect only one architecture'",
                fix='write the class that the weights are of: "architectures": ["Qwen2ForCausalLM"]',
            )
        ],
    ),
    "an unknown type": (
        changed(MODEL, type_known=False, config_refused=REFUSED),
        [
            error(
                "model.architecture",
                "transformers 5.9.0 does not know model_type 'qwen2' (Qwen2ForCausalLM)",
                why="bad",
                fix="a model of a known type, or the transformers release that its card names (verl 0.9.1 takes <5.11)",
            )
        ],
    ),
    "a refused config": (
        changed(MODEL, config_refused=REFUSED),
        [
            error(
                "model.config",
                "transformers refuses config.json: ValueError",
                why="bad value",
                fix="correct that value in config.json, or copy the file again",
            )
        ],
    ),
    "an unknown class": (
        changed(MODEL, class_known=False),
        [
            error(
                "model.architecture",
                "transformers 5.9.0 has no class Qwen2ForCausalLM",
                why="config.json names it (model_type 'qwen2'); actor and reference model are loaded by it",
                fix="a model of a known architecture, or the transformers release that its card names",
            )
        ],
    ),
    "vLLM has dropped it": (
        changed(MODEL, vllm={"known": False, "until": "0.9", "models": 300}),
        [
            error(
                "model.architecture",
                "vLLM no longer has Qwen2ForCausalLM: 0.9 was the last version",
                why="the rollout engine refuses it by that name",
                fix="another model; older versions of vLLM do not fit this verl",
            )
        ],
    ),
    "vLLM wraps it": (
        changed(MODEL, vllm={"known": False, "until": None, "models": 300}, vllm_may_wrap=True),
        [
            warning(
                "model.architecture",
                "vLLM has no model of its own for Qwen2ForCausalLM",
                why="it takes transformers' implementation (the Transformers backend), which is slower",
                fix="nothing, or a model among those of vLLM's list of supported models",
            )
        ],
    ),
    "vLLM lacks it": (
        changed(MODEL, vllm={"known": False, "until": None, "models": 300}),
        [
            error(
                "model.architecture",
                "vLLM has no model for Qwen2ForCausalLM",
                why="none of its 300 architectures, and transformers' class cannot replace it",
                fix="a model among those of vLLM's list of supported models",
            )
        ],
    ),
    "a broken tokenizer": (
        changed(MODEL, tokenizer={"failed": {"type": "OSError", "message": "no\nfile"}}),
        [
            error(
                "model.tokenizer",
                "the tokenizer of m cannot be loaded",
                why="OSError: no file",
                fix="copy tokenizer.json and tokenizer_config.json of the model again, or name another folder with"
                " actor_rollout_ref.model.tokenizer_path",
            )
        ],
    ),
    "no chat template": (
        changed(MODEL, tokenizer__template=False),
        [
            error(
                "model.chat-template",
                "the tokenizer has no chat template",
                why="verl renders every prompt with it: 'Cannot use chat template functions ...'",
                fix="the instruct variant of the model, or actor_rollout_ref.model.custom_chat_template=TEMPLATE",
            )
        ],
    ),
    "a failing template": (
        changed(MODEL, tokenizer__template_failed={"type": "UndefinedError", "message": "x"}),
        [
            error(
                "model.chat-template",
                "the chat template cannot render one message of a user",
                why="UndefinedError: x",
                fix="fix chat_template.jinja, or set actor_rollout_ref.model.custom_chat_template",
            )
        ],
    ),
    "a template without the message": (
        changed(MODEL, tokenizer__says_it=False),
        [
            error(
                "model.chat-template",
                "the chat template leaves out what the user says",
                why="a rendered message does not hold its own content: each prompt would be the same",
                fix="fix chat_template.jinja, or set actor_rollout_ref.model.custom_chat_template",
            )
        ],
    ),
    "no end of sequence": (
        changed(MODEL, tokenizer__eos=None),
        [
            error(
                "model.tokenizer",
                "the tokenizer has no end-of-sequence token",
                why="verl pads and ends sequences with it",
                fix='"eos_token" in tokenizer_config.json',
            )
        ],
    ),
    "more ids than rows": (
        changed(MODEL, tokenizer__largest_id=1000),
        [
            error(
                "model.vocabulary",
                "the tokenizer has ids up to 1000, the model's embedding 1000 rows",
                why="an id beyond it is a device-side assert ('index out of range') at some step",
                fix="the tokenizer that belongs to the model, or resize_token_embeddings and save both",
            )
        ],
    ),
    "no flash-attn": (
        changed(MODEL, has_flash_attention=False),
        [
            error(
                "model.attention",
                "actor and reference model want flash_attention_2, and flash-attn is not installed",
                why="it is verl's default: ImportError when the actor is loaded",
                fix=f"install flash-attn as {environment_dir()}/cuda.lock has it, or"
                " +actor_rollout_ref.model.override_config.attn_implementation=sdpa"
                " actor_rollout_ref.model.use_remove_padding=False",
                overrides={
                    "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
                    "actor_rollout_ref.model.use_remove_padding": "False",
                },
            )
        ],
    ),
    "no flash-attn with verl 0.4": (
        changed(MODEL, has_flash_attention=False, trainer_version="0.4.1"),
        [
            error(
                "model.attention",
                "verl 0.4.1 imports flash-attn on a GPU, and it is not installed",
                why="ModuleNotFoundError in its actor; its code names flash_attention_2 and reads no setting for it",
                fix="install a build of flash-attn for this torch (docs/contributing/pins.md, the older line)",
            )
        ],
    ),
    "a context that is too long": (
        changed(MODEL, config__actor_rollout_ref__rollout__max_model_len=512),
        [
            error(
                "model.context",
                "actor_rollout_ref.rollout.max_model_len=512, and the model has 256 positions",
                why="verl 0.9.1 refuses it (vllm_async_server.py:1107), after the workers are up",
                fix="actor_rollout_ref.rollout.max_model_len=128",
                overrides={"actor_rollout_ref.rollout.max_model_len": "128"},
            )
        ],
    ),
    "no room for an answer": (
        changed(MODEL, sizes__max_position_embeddings=64),
        [
            error(
                "model.context",
                "prompts of up to 64 tokens leave no room in a context of 64",
                why="verl 0.9.1 raises 'leaves no room to generate' at the first prompt of that length",
                fix="data.max_prompt_length=1",
                overrides={"data.max_prompt_length": "1"},
            )
        ],
    ),
    "answers that are cut off": (
        changed(MODEL, sizes__max_position_embeddings=100),
        [
            warning(
                "model.context",
                "a prompt of 64 and an answer of 64 tokens do not fit a context of 100 together",
                why="answers to the longest prompts are cut short",
                fix="data.max_response_length=36",
                overrides={"data.max_response_length": "36"},
            )
        ],
    ),
    "an old verl and answers that do not fit": (
        changed(MODEL, sizes__max_position_embeddings=100, trainer_version="0.3.1.dev"),
        [
            error(
                "model.context",
                "a prompt of 64 and an answer of 64 tokens do not fit the model's 100 positions",
                why="verl 0.3.1.dev asserts 'model context length should be greater than total sequence length'",
                fix="data.max_response_length=36",
                overrides={"data.max_response_length": "36"},
            )
        ],
    ),
    "an old verl and a model that stretches its positions": (
        changed(
            MODEL,
            sizes__max_position_embeddings=128,
            trainer_version="0.3.1.dev",
            json__rope_parameters={"rope_type": "yarn"},
        ),
        [],
    ),
    "heads that do not divide": (
        changed(MODEL, config__actor_rollout_ref__rollout__tensor_model_parallel_size=3),
        [
            error(
                "model.heads",
                "tensor_model_parallel_size=3 does not divide the model's 4 attention heads",
                why="vLLM: 'Total number of attention heads must be divisible by tensor parallel size'",
                fix="actor_rollout_ref.rollout.tensor_model_parallel_size=2",
                overrides={"actor_rollout_ref.rollout.tensor_model_parallel_size": "2"},
            )
        ],
    ),
    "a cache larger than the memory": (
        changed(MODEL, variables={"VERL_PLATFORM": "cpu", "VLLM_CPU_KVCACHE_SPACE": "9"}),
        [
            error(
                "model.memory",
                "VLLM_CPU_KVCACHE_SPACE=9 GiB, and this machine has 8.0 GiB of memory",
                why="vLLM raises ValueError: available memory is less than requested memory for kv",
                fix="VLLM_CPU_KVCACHE_SPACE=1",
                variables={"VLLM_CPU_KVCACHE_SPACE": "1"},
            ),
            error(
                "model.memory",
                "the training needs about 9.0 GiB of memory, 8.0 GiB are there",
                why="0.0 MiB for parameters, gradients and optimizer, 0.0 MiB for vLLM's weights, 9.0 GiB for its"
                " cache: the OOM killer ends it",
                fix="a smaller model (`raydebug tiny model DIR --like MODEL`), or a larger machine",
            ),
        ],
    ),
}


@pytest.mark.parametrize(("facts", "findings"), MODELS.values(), ids=MODELS)
def test_model(facts: dict[str, Any], findings: list[Finding]) -> None:
    """Each fault of a model is one finding with its reason and its fix; a model that fits has none."""
    assert model.judge(TARGET, facts) == findings


SHARDS: Cases = {
    "a broken index": (
        {"index_broken": "Expecting value"},
        [
            error(
                "model.shard",
                "m/model.safetensors.index.json cannot be read",
                why="Expecting value",
                fix="copy or download that file again (`hf download` checks what it wrote)",
            )
        ],
    ),
    "no weights": (
        {"shards": [], "others": []},
        [
            error(
                "model.weights",
                "m has no weights",
                why="neither .safetensors nor .bin files are there",
                fix="copy the whole model; a folder with config and tokenizer alone is half of it",
            )
        ],
    ),
    "pickled weights": (
        {"shards": [], "others": ["pytorch_model.bin"]},
        [
            warning(
                "model.weights",
                "m has no .safetensors, but pytorch_model.bin",
                why="weights in pickle files are read whole by each rank, and run code when they are loaded",
                fix="save_pretrained(..., safe_serialization=True) once",
            )
        ],
    ),
    "a missing shard": (
        {"shards": [{"name": "a.safetensors", "wrong": "missing"}]},
        [
            error(
                "model.shard",
                "m/a.safetensors is not there",
                why="the index names it",
                fix="copy or download that file again (`hf download` checks what it wrote)",
            )
        ],
    ),
    "a pointer": (
        {"shards": [{"name": "a.safetensors", "wrong": "pointer", "bytes": 130}]},
        [
            error(
                "model.shard",
                "m/a.safetensors is a pointer of git-lfs, not the file",
                why="`git lfs pull` was not run",
                fix="git lfs pull",
            )
        ],
    ),
    "an empty shard": (
        {"shards": [{"name": "a.safetensors", "wrong": "empty", "bytes": 0}]},
        [
            error(
                "model.shard",
                "m/a.safetensors is empty",
                why="it has 0 bytes",
                fix="copy or download that file again (`hf download` checks what it wrote)",
            )
        ],
    ),
    "no safetensors": (
        {"shards": [{"name": "a.safetensors", "wrong": "header", "said": "its header has 9 bytes, the file 5"}]},
        [
            error(
                "model.shard",
                "m/a.safetensors is not a safetensors file",
                why="its header has 9 bytes, the file 5",
                fix="copy or download that file again (`hf download` checks what it wrote)",
            )
        ],
    ),
    "a shard cut off": (
        {
            "shards": [
                {"name": "a.safetensors", "wrong": "truncated", "expected": 20, "bytes": 10},
                {"name": "b.safetensors", "wrong": "longer", "expected": 5, "bytes": 10},
            ]
        },
        [
            error(
                "model.shard",
                "m/a.safetensors is cut off (one of 2 files)",
                why="its header promises 20 bytes, it has 10",
                fix="copy or download that file again (`hf download` checks what it wrote)",
            ),
            error(
                "model.shard",
                "m/b.safetensors is longer than its header says (one of 2 files)",
                why="10 bytes, not 5",
                fix="copy or download that file again (`hf download` checks what it wrote)",
            ),
        ],
    ),
    "tensors of another download": (
        {"lost_count": 2, "lost": ["x", "y"]},
        [
            error(
                "model.shard",
                "2 tensors that the index promises are in no file",
                why="such as x, y",
                fix="files of two downloads are mixed: copy or download the model again (`hf download` checks what it"
                " wrote)",
            )
        ],
    ),
    "another embedding": (
        {"embedding": [1000, 32]},
        [
            error(
                "model.config-mismatch",
                "vocab_size, hidden_size: config.json says 1000, 64, the weights 1000, 32",
                why="loading ends with 'size mismatch', or vLLM with an assertion in its weight loader",
                fix="the config.json that belongs to these weights",
            )
        ],
    ),
    "too few layers": (
        {"layers": 1},
        [
            error(
                "model.config-mismatch",
                "config.json says 2 layers, the weights have 1",
                why="the others would start from random numbers, with one warning of transformers",
                fix="the config.json that belongs to these weights, or all of their files",
            )
        ],
    ),
}


@pytest.mark.parametrize(("changes", "findings"), SHARDS.values(), ids=SHARDS)
def test_shards(changes: dict[str, Any], findings: list[Finding]) -> None:
    """Each fault of the weight files is one finding with its reason and its fix."""
    facts = {**MODEL, "shards": {**MODEL["shards"], **changes}}
    assert list(model.judge_shards(facts)) == findings


ENGINES: Cases = {
    "it starts": (STARTED, []),
    "the command's own option": (
        failed(
            "1 validation error\n  cache_dtype: bad value 'fp7' [type=literal_error, input]",
            "ValidationError",
            "settings",
        ),
        [
            error(
                "engine.settings",
                "vLLM fails at 'settings': ValidationError: 1 validation error: cache_dtype: bad value 'fp7'",
                why="vllm/x.py:7 raised it (import 9.0 s, engine 3.2 s)",
                fix="take actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype out, or give it a value that"
                " vLLM takes",
                overrides={"actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype": None},
            )
        ],
    ),
    "a cache that is too small": (
        failed("larger than the available KV cache memory", config=PLAIN),
        [
            error(
                "engine.start",
                "vLLM fails at 'engine': ValueError: larger than the available KV cache memory",
                why="vllm/x.py:7 raised it (import 9.0 s, engine 3.2 s)",
                fix="a smaller actor_rollout_ref.rollout.max_model_len, or a larger gpu_memory_utilization (on a CPU"
                " VLLM_CPU_KVCACHE_SPACE)",
            )
        ],
    ),
    "no GPU": (
        failed("Failed to infer device type, please set VLLM_LOGGING_LEVEL=DEBUG", config=PLAIN),
        [
            error(
                "engine.start",
                "vLLM fails at 'engine': ValueError: Failed to infer device type, please set VLLM_LOGGING_LEVEL=DEBUG",
                why="vllm/x.py:7 raised it (import 9.0 s, engine 3.2 s)",
                fix="vLLM finds no GPU: run it on a GPU host, or see what `raydebug check env` says of the driver",
            )
        ],
    ),
    "a full GPU": (
        failed("Free memory on device (1/8 GiB)", config=PLAIN),
        [
            error(
                "engine.start",
                "vLLM fails at 'engine': ValueError: Free memory on device (1/8 GiB)",
                why="vllm/x.py:7 raised it (import 9.0 s, engine 3.2 s)",
                fix="free the GPU (`nvidia-smi` names its processes), or a smaller"
                " actor_rollout_ref.rollout.gpu_memory_utilization",
            )
        ],
    ),
    "no sleep mode": (
        failed("Sleep mode is not supported on this platform", config=PLAIN),
        [
            error(
                "engine.start",
                "vLLM fails at 'engine': ValueError: Sleep mode is not supported on this platform",
                why="vllm/x.py:7 raised it (import 9.0 s, engine 3.2 s)",
                fix="+actor_rollout_ref.rollout.enable_sleep_mode=False"
                " actor_rollout_ref.rollout.free_cache_engine=False",
            )
        ],
    ),
    "libraries that do not fit": (
        failed("a.so: undefined symbol: x", "ImportError", "import", PLAIN),
        [
            error(
                "engine.import",
                "vLLM fails at 'import': ImportError: a.so: undefined symbol: x",
                why="vllm/x.py:7 raised it (import 9.0 s, engine 3.2 s)",
                fix="install vLLM and torch of one lock again: they do not fit",
            )
        ],
    ),
    "an unknown failure": (
        failed("boom", config=PLAIN, phase="token"),
        [
            error(
                "engine.token",
                "vLLM fails at 'token': ValueError: boom",
                why="vllm/x.py:7 raised it (import 9.0 s, engine 3.2 s)",
                fix="run `raydebug check engine --json` for all that was printed, and look at the line that raised it",
            )
        ],
    ),
    "an unknown failure beside own options": (
        failed("boom"),
        [
            error(
                "engine.start",
                "vLLM fails at 'engine': ValueError: boom",
                why="vllm/x.py:7 raised it (import 9.0 s, engine 3.2 s)",
                fix="take out what the command adds for vLLM, one by one:"
                " actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype",
            )
        ],
    ),
}


@pytest.mark.parametrize(("facts", "findings"), ENGINES.values(), ids=ENGINES)
def test_engine(facts: dict[str, Any], findings: list[Finding]) -> None:
    """Each failure of vLLM is one finding at its phase, with the setting to change where vLLM names it."""
    assert engine.judge(TARGET, facts) == findings


@pytest.mark.parametrize("name", ["data", "model", "engine"])
def test_a_command_that_hydra_refuses(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Every stage reports a misspelt setting with the nearest one, as an override that `--fix` applies."""
    refusal = {"message": "Could not override 'data.train_batchsize'.", "keys": ["data.train_batch_size"]}
    target = Target((*COMMAND, "data.train_batchsize=8"), TARGET.program, Path(), LocalRunner("python"), {}, {})
    monkeypatch.setattr(stages, "run_probe", lambda *_, **__: {"config_error": refusal})
    (found,) = stages.Stage(name).check(target).findings
    assert (found.code, found.what) == ("command.override", "the config has no setting data.train_batchsize")
    assert found.fix == "data.train_batch_size=8, if that is meant; +data.train_batchsize=8 adds a new one"
    assert found.overrides == {"data.train_batchsize": None, "data.train_batch_size": "8"}


PICTURES: dict[str, Any] = {
    "vision": True, "column": "images", "in_data": True, "others": ["images"], "placeholders": 16, "images": 16,
}  # fmt: skip
IMAGE_KEYS = {"image_column": "data.image_key", "load_format": "actor_rollout_ref.rollout.load_format"}
IMAGE_ROWS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "as it should be": ({}, []),
    "no images at all": ({"placeholders": 0, "images": 0, "in_data": False}, []),
    "another column": ({"in_data": False, "others": ["pictures"]}, ["data.image-column data.image_key=pictures"]),
    "a text model": ({"vision": False}, ["data.image-model"]),
    "a model that is not here": ({"vision": None}, []),
    "too few and broken": (
        {"differs": {"row": 3, "placeholders": 2, "images": 1}, "broken": {"row": 4, "image": 0, "said": "OSError: x"}},
        ["data.image-count", "data.image-broken"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), IMAGE_ROWS.values(), ids=IMAGE_ROWS)
def test_images_of_rows(changes: dict[str, Any], expected: list[str]) -> None:
    """Images and placeholders that do not fit each other are findings; a fix that is a setting comes as one."""
    found = images.judge_rows(TrainingConfig({}, IMAGE_KEYS), {**PICTURES, **changes})
    said = [" ".join([one.code, *(f"{key}={value}" for key, value in one.overrides.items())]) for one in found]
    assert said == expected


PROCESSOR: dict[str, Any] = {
    "files": ["processor_config.json"], "class": "Qwen2_5_VLProcessor", "template": True,
    "loses_normalization": False, "breaks_equal_lengths": False, "sequences": 8, "verl": "0.9.1",
}  # fmt: skip
PROCESSORS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "as it should be": ({}, []),
    "no torchvision": ({"no_torchvision": True, "fitting": "0.28.0"}, ["error model.torchvision"]),
    "a broken one": ({"failed": {"type": "OSError", "message": "no file", "where": ""}}, ["error model.processor"]),
    "a text template": ({"template": False}, ["error model.processor"]),
    "a vLLM that loses the normalization": ({"loses_normalization": True}, ["error model.load-format"]),
    "a verl that splits wrongly": ({"breaks_equal_lengths": True}, ["warning model.equal-lengths"]),
    "one sequence at a time": ({"breaks_equal_lengths": True, "sequences": 1}, ["error model.equal-lengths"]),
}


@pytest.mark.parametrize(("changes", "expected"), PROCESSORS.values(), ids=PROCESSORS)
def test_processor_of_a_vision_model(changes: dict[str, Any], expected: list[str]) -> None:
    """What keeps a model from its images is one finding each; where only some batches fail it is a warning."""
    found = images.judge_processor({"path": "m", "processor": {**PROCESSOR, **changes}}, IMAGE_KEYS)
    assert [f"{one.severity} {one.code}" for one in found] == expected


def test_a_training_that_runs_elsewhere() -> None:
    """With --elsewhere missing data and GPUs are no errors; settings are judged as where they are."""
    missing = {"exists": False, "is_file": False}
    here = changed(
        DATASET,
        gpus=0,
        variables={"VERL_PLATFORM": "cpu"},
        splits__train=[{"path": "a.parquet", "remote": False, **missing}],
        splits__val=[{"path": "s3://b.parquet", "remote": True, **missing}],
        lengths={"unknown": "no prompts were read"},
    )
    target = replace(TARGET, elsewhere=True)
    assert data.judge(target, here) == [
        note(
            "data.file-missing",
            "data.train_files: a.parquet is not here; it was not looked at",
            why="--elsewhere: it may be where the training runs",
            fix="copy it here to have it checked",
        ),
        note(
            "data.file-missing",
            "data.val_files: s3://b.parquet is fetched by the trainer; it was not looked at",
            why="a check fetches nothing",
            fix="copy it here to have it checked",
        ),
        note(
            "data.lengths-unknown",
            "the lengths of the prompts were not measured",
            why="no prompts were read",
            fix="see what stage `model` says",
        ),
    ]
    wrong = changed(here, config__data__train_batch_size=4)
    assert {one.code for one in data.judge(target, wrong) if one.severity == "error"} == {"command.batch"}
    assert {"command.cpu", "data.file-missing"} <= {
        one.code for one in data.judge(TARGET, here) if one.severity == "error"
    }


@pytest.mark.parametrize(("version", "fails"), [("0.6.1", False), ("0.7.0", True), ("", True)])
def test_a_reward_file_with_dataclasses(
    version: str, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need their module in sys.modules, where verl before 0.7 puts it and later ones do not."""
    monkeypatch.setitem(sys.modules, "custom_module", None)
    file = tmp_path / "reward.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Score:\n    value: float = 0.0\ndef compute_score(**_):\n    return Score().value\n"
    )
    reward = SimpleNamespace(path=str(file), name="compute_score", manager="naive", by_model=False, options={})
    plan = SimpleNamespace(config=None, program=TARGET.program)
    found = try_reward(plan, SimpleNamespace(reward_function=lambda _: reward), [], version)
    assert ("import" in found) == fails
