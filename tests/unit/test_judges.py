"""The rules of `raydebug check` about data, rewards, models, weight files and vLLM: exact findings, without torch."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raydebug.check import data, engine, model, stages
from raydebug.check.config import judge as judge_command
from raydebug.check.probes import __main__ as probes
from raydebug.check.probes.data import try_reward
from raydebug.check.target import NoAnswer, Target, facts_of
from raydebug.cluster.runner import LocalRunner
from raydebug.findings import Finding
from raydebug.settings.files import environment_dir
from raydebug.trainers.config import TrainingConfig
from raydebug.trainers.registry import recognise
from raydebug.trainers.verl.batch_sizes import judge_batch
from verl_config import ACTOR, ROLLOUT, config

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
FILE = {"exists": True, "is_file": True, "remote": False}
ABSENT = {"exists": False, "is_file": False}
FOLDER = {"path": "d", "exists": True, "is_file": False, "remote": False}
# What the probe `data` returns for a training that passes.
DATASET: dict[str, Any] = {
    "config": CONFIG,
    "variables": {},
    "gpus": 8,
    "verdict": None,
    "images": {"vision": False, "column": "images", "in_data": False, "others": [], "placeholders": 0, "images": 0},
    "splits": {
        "train": [{"path": "train.parquet", **FILE, "columns": COLUMNS, "rows": 16}],
        "val": [{"path": "val.parquet", **FILE, "columns": COLUMNS, "rows": 16}],
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
    "sizes": {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "max_position_embeddings": 256},
    "layer_types": [],
    "has_flash_attention": True,
    "memory_bytes": 8589934592,
    "gpu_bytes": None,
    "shards": {"shards": [{"name": "a.safetensors", "bytes": 10}], "lost": [], "lost_count": 0,
               "embedding": [1000, 64], "layers": 2, "parameters": 1000, "others": []},
}  # fmt: skip
NOWHERE = {"config": CONFIG, "variables": {}, "path": "m", "folder": None}
REFUSED = {"type": "ValueError", "message": "bad\nvalue"}
STARTED: dict[str, Any] = {"config": CONFIG, "phase": "engine", "phases": {"import": 9.0, "engine": 3.25}, "output": ""}
NO_REWARD = "Reward function is not implemented for data_source='mine'"
POLICY_LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"


def raised(kind: str, message: str, where: str) -> dict[str, str]:
    return {"type": kind, "message": message, "where": where}


TYPE_ERROR = raised("TypeError", "score() got an unexpected keyword argument 'extra_info'", "r.py:4")


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


def without(column: str) -> dict[str, Any]:
    return {name: kind for name, kind in COLUMNS.items() if name != column}


PLAIN = changed(CONFIG, actor_rollout_ref__rollout__engine_kwargs={})


def failed(
    message: str, kind: str = "ValueError", phase: str = "engine", config: dict[str, Any] = CONFIG
) -> dict[str, Any]:
    """Return what the probe `engine` returns when vLLM fails."""
    return {**STARTED, "config": config, "phase": phase, "failed": raised(kind, message, "vllm/x.py:7")}


Cases = dict[str, dict[str, Any]]
DATA: Cases = {
    "files that fit": {},
    "no file": {"splits__train": [], "config__data__train_files": []},
    "a remote file": {"splits__train__0__remote": True, "splits__train__0__path": "hdfs://a/b.parquet"},
    "a missing file": {
        "splits__train__0": {"path": "t.parquet", **ABSENT, "remote": False, "beside": ["x.parquet", "notes.txt"]}
    },
    "a folder": {"splits__train__0": {**FOLDER, "holds": ["a.parquet", "b.parquet", "c.txt"]}},
    "a folder of many files, with a name that Hydra would not read": {
        "splits__train__0": {**FOLDER, "holds": ["a (1).parquet", "b.parquet", "c.parquet", "d.parquet"]}
    },
    "another format": {"splits__train__0": {"path": "t.csv", **FILE, "format": ".csv"}},
    "an unreadable file": {
        "splits__train__0": {"path": "t.parquet", **FILE, "unreadable": "Parquet magic bytes not found", "bytes": 12}
    },
    "a missing column": {"splits__train__0__columns": {**without("prompt"), "messages": COLUMNS["prompt"]}},
    "prompts that are text": {"splits__train__0__columns": {**COLUMNS, "prompt": "string"}},
    "no data_source": {"splits__train__0__columns": without("data_source")},
    "no ground truth": {"splits__train__0__columns": {**COLUMNS, "reward_model": "struct<style: string>"}},
    "extra_info that is text": {"splits__train__0__columns": {**COLUMNS, "extra_info": "string"}},
    "extra_info that is empty in every row": {"splits__train__0__columns": {**COLUMNS, "extra_info": "null"}},
    "a number that is a word, and few rows": {"splits__train__0__rows": 5, "config__data__train_max_samples": "1k"},
    "fewer rows than a batch": {"splits__train__0__rows": 5},
    "rows that are filtered out": {"config__data__filter_overlong_prompts": True, "lengths__too_long": 10},
    "long rows, of which few are taken": {
        "config__data__filter_overlong_prompts": True,
        "config__data__train_max_samples": 10,
        "lengths__too_long": 10,
    },
    "no validation rows": {"splits__val__0__rows": 0},
    "a refused role": {"lengths": {"row": 2, "refused": "TemplateError: no", "roles": ["tool"]}},
    "lengths that were not measured": {"lengths": {"unknown": "the tokenizer has no chat template"}},
    "long prompts": {"lengths__too_long": 2, "lengths__longest": 90},
    "long prompts with verl 0.4": {
        "lengths__too_long": 2,
        "lengths__longest": 90,
        "trainer_version": "0.4.1",
        "config__data__truncation": "error",
    },
    "verl's own refusal": {"verdict": {**raised("ValueError", "no such loss\nmore", "a.py:3"), "part": POLICY_LOSS}},
}


BATCHES: Cases = {
    "a batch that the ranks do not divide": {"data__train_batch_size": 65},
    "a mini batch larger than the batch": {f"{ACTOR}__ppo_mini_batch_size": 128},
    "a mini batch that the ranks do not divide": {f"{ACTOR}__ppo_mini_batch_size": 1},
    "a micro batch that does not divide": {f"{ACTOR}__ppo_micro_batch_size_per_gpu": 5},
    "a mini batch of dynamic sizes that the ranks do not divide": {
        f"{ACTOR}__ppo_mini_batch_size": 1,
        f"{ACTOR}__use_dynamic_bsz": True,
    },
    "a batch of dynamic sizes that the older trainer does not pad": {
        "data__train_batch_size": 65,
        f"{ACTOR}__use_dynamic_bsz": True,
        "trainer__use_v1": False,
        f"{ROLLOUT}__log_prob_use_dynamic_bsz": True,
    },
    "both micro batches": {f"{ACTOR}__ppo_micro_batch_size": 32},
    "no micro batch for the reference model": {f"{ACTOR}__use_kl_loss": True},
    "a critic's mini batch": {"algorithm__adv_estimator": "gae", "critic__ppo_mini_batch_size": 100},
    "pieces that do not make a batch": {"data__gen_batch_size": 24},
    "no rollout at all": {f"{ROLLOUT}__n": 0},
}
COMMANDS: Cases = {
    "a tensor split over more than there are": {f"{ROLLOUT}__tensor_model_parallel_size": 3},
    "pipelines": {f"{ROLLOUT}__pipeline_model_parallel_size": 2},
    "sequences split over more than there are": {f"{ACTOR}__ulysses_sequence_parallel_size": 3, f"{ROLLOUT}__n": 12},
    "an empty shell variable": {"data__train_batch_size": ""},
    "a word for a number": {"trainer__nnodes": "two"},
    "a rollout that nobody named": {f"{ROLLOUT}__name": "???"},
    "nothing to do": {"trainer__total_epochs": 0},
}


REWARDS: Cases = {
    "no file": {"missing": "r.py"},
    "one other function": {"missing_function": ["reward"]},
    "other functions": {"missing_function": ["a", "b"]},
    "a missing package": {"import": raised("ModuleNotFoundError", "No module named 'sympy'", "r.py:1")},
    "a syntax error": {"import": raised("SyntaxError", "invalid", "r.py:2")},
    "no number": {"calls": [{"row": 0, "usable": False, "value": "nan", "source": "x"}]},
    "unknown arguments": {"calls": [{"row": 1, "raised": TYPE_ERROR, "source": "x"}]},
    "it raises": {"calls": [{"row": 1, "raised": raised("KeyError", "'x'", "r.py:9"), "source": "x"}]},
    "an unknown data source": {
        "path": None,
        "calls": [{"row": 0, "raised": raised("NotImplementedError", NO_REWARD, "v.py:1"), "source": "mine"}],
    },
    "a number": {"calls": [{"row": 0, "usable": True, "value": "1.0"}]},
    "a manager of another kind": {"manager": "own", "calls": [{"row": 0, "usable": False, "value": "x"}]},
}


UNKNOWN = {"known": False, "until": None, "models": 300}
MODELS: Cases = {
    "a model that fits": MODEL,
    "remote": {**NOWHERE, "remote": True, "path": "s3://a"},
    "a file": {**NOWHERE, "is_file": True, "path": "m/config.json"},
    "a hub name that is not cached": {**NOWHERE, "is_hub": True, "path": "org/m"},
    "no folder": NOWHERE,
    "a broken config.json": {**NOWHERE, "folder": "m", "config_broken": "Expecting value"},
    "no config.json": {**NOWHERE, "folder": "m", "files": ["a.txt"]},
    "a checkpoint": {**NOWHERE, "folder": "m", "files": ["model_world_size_2_rank_0.pt"]},
    "its own code": changed(
        MODEL,
        remote_code={"AutoConfig": "x.Y"},
        type_known=False,
        json={"architectures": ["Y"], "model_type": "y", "auto_map": {}},
    ),
    "two architectures": changed(MODEL, json={"architectures": ["A", "B"]}),
    "an unknown type": changed(MODEL, type_known=False, config_refused=REFUSED),
    "a refused config": changed(MODEL, config_refused=REFUSED),
    "an unknown class": changed(MODEL, class_known=False),
    "vLLM has dropped it": changed(MODEL, vllm={**UNKNOWN, "until": "0.9"}),
    "vLLM wraps it": changed(MODEL, vllm=UNKNOWN, vllm_may_wrap=True),
    "vLLM lacks it": changed(MODEL, vllm=UNKNOWN),
    "a broken tokenizer": changed(MODEL, tokenizer={"failed": {"type": "OSError", "message": "no\nfile"}}),
    "no chat template": changed(MODEL, tokenizer__template=False),
    "a failing template": changed(MODEL, tokenizer__template_failed={"type": "UndefinedError", "message": "x"}),
    "a template without the message": changed(MODEL, tokenizer__says_it=False),
    "no end of sequence": changed(MODEL, tokenizer__eos=None),
    "more ids than rows": changed(MODEL, tokenizer__largest_id=1000),
    "no flash-attn": changed(MODEL, has_flash_attention=False),
    "no flash-attn with verl 0.4": changed(MODEL, has_flash_attention=False, trainer_version="0.4.1"),
    "a context that is too long": changed(MODEL, config__actor_rollout_ref__rollout__max_model_len=512),
    "no room for an answer": changed(MODEL, sizes__max_position_embeddings=64),
    "answers that are cut off": changed(MODEL, sizes__max_position_embeddings=100),
    "an old verl and answers that do not fit": changed(
        MODEL, sizes__max_position_embeddings=100, trainer_version="0.3.1.dev"
    ),
    "an old verl and a model that stretches its positions": changed(
        MODEL,
        sizes__max_position_embeddings=128,
        trainer_version="0.3.1.dev",
        json__rope_parameters={"rope_type": "yarn"},
    ),
    "heads that do not divide": changed(MODEL, config__actor_rollout_ref__rollout__tensor_model_parallel_size=3),
    "a cache larger than the memory": changed(MODEL, variables={"VERL_PLATFORM": "cpu", "VLLM_CPU_KVCACHE_SPACE": "9"}),
}


def shard(wrong: str, name: str = "a.safetensors", **facts: Any) -> dict[str, Any]:
    return {"name": name, "wrong": wrong, **facts}


SHARDS: Cases = {
    "a broken index": {"index_broken": "Expecting value"},
    "no weights": {"shards": [], "others": []},
    "pickled weights": {"shards": [], "others": ["pytorch_model.bin"]},
    "a missing shard": {"shards": [shard("missing")]},
    "a pointer": {"shards": [shard("pointer", bytes=130)]},
    "an empty shard": {"shards": [shard("empty", bytes=0)]},
    "no safetensors": {"shards": [shard("header", said="its header has 9 bytes, the file 5")]},
    "a shard cut off": {
        "shards": [shard("truncated", expected=20, bytes=10), shard("longer", "b.safetensors", expected=5, bytes=10)]
    },
    "tensors of another download": {"lost_count": 2, "lost": ["x", "y"]},
    "another embedding": {"embedding": [1000, 32]},
    "too few layers": {"layers": 1},
}


ENGINES: Cases = {
    "it starts": STARTED,
    "the command's own option": failed(
        "1 validation error\n  cache_dtype: bad value 'fp7' [type=literal_error, input]", "ValidationError", "settings"
    ),
    "a cache that is too small": failed("larger than the available KV cache memory", config=PLAIN),
    "no GPU": failed("Failed to infer device type, please set VLLM_LOGGING_LEVEL=DEBUG", config=PLAIN),
    "a full GPU": failed("Free memory on device (1/8 GiB)", config=PLAIN),
    "no sleep mode": failed("Sleep mode is not supported on this platform", config=PLAIN),
    "libraries that do not fit": failed("a.so: undefined symbol: x", "ImportError", "import", PLAIN),
    "an unknown failure": failed("boom", config=PLAIN, phase="token"),
    "an unknown failure beside own options": failed("boom"),
}


PICTURES: dict[str, Any] = {
    "vision": True, "column": "images", "in_data": True, "others": ["images"], "placeholders": 16, "images": 16,
}  # fmt: skip
IMAGE_KEYS = {"image_column": "data.image_key", "load_format": "actor_rollout_ref.rollout.load_format"}
IMAGE_ROWS: Cases = {
    "as it should be": {},
    "no images at all": {"placeholders": 0, "images": 0, "in_data": False},
    "another column": {"in_data": False, "others": ["pictures"]},
    "a text model": {"vision": False},
    "a model that is not here": {"vision": None},
    "too few and broken": {
        "differs": {"row": 3, "placeholders": 2, "images": 1},
        "broken": {"row": 4, "image": 0, "said": "OSError: x"},
    },
}


PROCESSOR: dict[str, Any] = {
    "files": ["processor_config.json"], "class": "Qwen2_5_VLProcessor", "template": True,
    "loses_normalization": False, "breaks_equal_lengths": False, "sequences": 8, "verl": "0.9.1",
}  # fmt: skip
PROCESSORS: Cases = {
    "as it should be": {},
    "no torchvision": {"no_torchvision": True, "fitting": "0.28.0"},
    "a broken one": {"failed": {"type": "OSError", "message": "no file", "where": ""}},
    "a text template": {"template": False},
    "a vLLM that loses the normalization": {"loses_normalization": True},
    "a verl that splits wrongly": {"breaks_equal_lengths": True},
    "one sequence at a time": {"breaks_equal_lengths": True, "sequences": 1},
}


Judge = Callable[[dict[str, Any]], Iterable[Finding]]
SCORE = {"path": "r.py", "name": "score", "manager": "naive", "calls": []}
JUDGES: dict[str, tuple[Cases, Judge]] = {
    "data": (DATA, lambda changes: data.judge(TARGET, changed(DATASET, **changes))),
    "batch": (BATCHES, lambda changes: judge_batch(config(**changes))),
    "command": (COMMANDS, lambda changes: judge_command(TARGET, {**DATASET, "config": config(**changes)})),
    "reward": (REWARDS, lambda changes: data.judge_reward({**SCORE, **changes}, TARGET.checks.keys)),
    "model": (MODELS, lambda facts: model.judge(TARGET, facts)),
    "weights": (SHARDS, lambda changes: model.judge_shards({**MODEL, "shards": {**MODEL["shards"], **changes}})),
    "engine": (ENGINES, lambda facts: engine.judge(TARGET, facts)),
    "images": (IMAGE_ROWS, lambda changes: data.judge_images(TrainingConfig({}, IMAGE_KEYS), {**PICTURES, **changes})),
    "processor": (
        PROCESSORS,
        lambda changes: model.judge_processor({"path": "m", "processor": {**PROCESSOR, **changes}}, IMAGE_KEYS),
    ),
}
CASES = {f"{area}: {name}": (judge, facts) for area, (cases, judge) in JUDGES.items() for name, facts in cases.items()}
TEXTS = Path(__file__).with_name("findings.txt")


def codes_of(findings: Iterable[Finding]) -> list[str]:
    return [f"{finding.severity} {finding.code}" for finding in findings]


def texts_of(case: str) -> list[str]:
    """Return the texts of the findings of a case."""
    judge, facts = CASES[case]
    blocks = []
    for finding in judge(facts):
        row = [f"# {case}", f"{finding.severity}: {finding.what}  [{finding.code}]"]
        row += [f"why: {finding.why}", f"fix: {finding.fix}"]
        row += [f"override: {key}={value}" for key, value in finding.overrides.items()]
        row += [f"variable: {key}={value}" for key, value in finding.variables.items()]
        blocks.append("\n".join(row).replace(str(environment_dir()), "ENV"))
    return blocks


KNOWN = TEXTS.read_text(encoding="utf-8").rstrip("\n").split("\n\n")


@pytest.mark.parametrize("case", CASES)
def test_each_fault_is_a_finding(case: str) -> None:
    """Severity, code, what is wrong, why, and the fix in words and as settings are those of findings.txt.

    What fits has none. `python tests/unit/test_judges.py` writes the file.
    """
    assert texts_of(case) == [block for block in KNOWN if block.startswith(f"# {case}\n")]


def test_each_text_has_its_case() -> None:
    """No text of findings.txt is left over."""
    assert {block.partition("\n")[0].removeprefix("# ") for block in KNOWN} <= CASES.keys()


SCORED = {"manager": "naive", "calls": [{"row": 0, "raised": TYPE_ERROR, "source": "s"}]}


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
        splits__val__0__columns=without("data_source"),
    )
    assert [finding.code for finding in data.judge(TARGET, facts)] == codes


def test_a_class_of_its_own_reads_the_data() -> None:
    """Where the command names a class that reads its data, columns and formats are its own; it is said."""
    named = {"config__data__custom_cls": {"path": "own.py", "name": "Own"}}
    facts = changed(DATASET, **named, splits__train__0__columns={}, splits__val__0__exists=False)
    assert codes_of(data.judge(TARGET, facts)) == ["warning data.file-missing", "note check.not-run"]


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


def test_a_training_that_runs_elsewhere() -> None:
    """With --elsewhere missing data and GPUs are no errors; settings are judged as where they are."""
    here = changed(
        DATASET,
        gpus=0,
        variables={"VERL_PLATFORM": "cpu"},
        splits__train=[{"path": "a.parquet", "remote": False, **ABSENT}],
        splits__val=[{"path": "s3://b.parquet", "remote": True, **ABSENT}],
        lengths={"unknown": "no prompts were read"},
    )
    target = replace(TARGET, elsewhere=True)
    assert codes_of(data.judge(target, here)) == [
        "note data.file-missing",
        "note data.file-missing",
        "note data.lengths-unknown",
    ]
    wrong = changed(here, config__data__train_batch_size=4)
    assert {code for code in codes_of(data.judge(target, wrong)) if "error" in code} == {"error command.batch"}
    assert {"error command.cpu", "error data.file-missing"} <= {*codes_of(data.judge(TARGET, here))}


def rewarded(file: Path) -> tuple[Any, Any]:
    """Return the plan and the rules of a training whose reward is in a file."""
    reward = SimpleNamespace(path=str(file), name="compute_score", manager="naive", by_model=False, options={})
    plan = SimpleNamespace(config=None, program=TARGET.program)
    return plan, SimpleNamespace(reward_function=lambda _: reward, reward_arguments=lambda *_: {})


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("def compute_score():\n    time.sleep(60)\n", r"compute_score at \S+/reward\.py:3, row 0, for \d+ s"),
        ("time.sleep(60)\n", r"<module> at \S+/reward\.py:2, as the reward function is loaded, for \d+ s"),
        ("def compute_score():\n    queue.Queue().get()\n", r"compute_score at \S+/reward\.py:3, row 0, for \d+ s"),
    ],
    ids=["in a call", "at its import", "in the standard library"],
)
def test_a_reward_that_hangs(text: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that is ended for its time names the user's function and line where it was, and the row."""
    (tmp_path / "reward.py").write_text(f"import queue, time\n{text}")
    plan, rules = rewarded(tmp_path / "reward.py")
    monkeypatch.setattr(probes, "_gather", lambda _: try_reward(plan, rules, [{}], "0.9.1"))
    answer = probes.run_apart({"question": "env"}, limit_s=1.5)
    with pytest.raises(NoAnswer, match=f"the check 'data' did not end within 1.5 s: it was in {place}") as caught:
        facts_of(answer, "data", 1.5)
    assert caught.value.finding.code == "check.out-of-time"


def test_sizes_of_the_command_itself() -> None:
    """Under a profile the sizes of the command without it are looked at too, and said in notes."""
    full = changed(CONFIG, actor_rollout_ref__actor__ppo_mini_batch_size=16)
    found = data.judge(TARGET, {**DATASET, "full": full})
    what = "at full size, without the profile: actor_rollout_ref.actor.ppo_mini_batch_size=16 is larger than"
    assert [(one.severity, one.what) for one in found] == [("note", f"{what} data.train_batch_size=8")]
    assert not data.judge(TARGET, {**DATASET, "full": CONFIG})


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
    found = try_reward(*rewarded(file), [], version)
    assert ("import" in found) == fails


if __name__ == "__main__":
    TEXTS.write_text("\n\n".join(block for case in CASES for block in texts_of(case)) + "\n", encoding="utf-8")
