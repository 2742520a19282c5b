"""What the checks reckon from a command's config: batch sizes, parallel sizes, loggers, and how fixes are applied."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from raydebug.check import config as config_rules
from raydebug.check import train
from raydebug.check.model_fit import Estimate, estimate
from raydebug.check.model_fit import judge as judge_fit
from raydebug.check.probes.plan import require_plain_files
from raydebug.check.stages import Fixed, apply_fixes
from raydebug.check.target import NoAnswer, Target, facts_of, find_target
from raydebug.cluster.runner import LocalRunner
from raydebug.commands import trainings
from raydebug.errors import RaydebugError
from raydebug.findings import Finding
from raydebug.runs.record import Run
from raydebug.settings.flavours import install
from raydebug.trainers.registry import recognise
from raydebug.trainers.verl.batch_sizes import judge_batch
from verl_config import ACTOR, ROLLOUT, config

GIB = 1024**3


def test_batches_that_fit() -> None:
    """Sizes that verl takes are not found fault with; what the v1 trainer pads is a warning, the older refuses it."""
    assert list(judge_batch(config())) == []
    assert (
        list(judge_batch(config(**{f"{ACTOR}__use_dynamic_bsz": True, f"{ACTOR}__ppo_micro_batch_size_per_gpu": None})))
        == []
    )
    dynamic = {f"{ACTOR}__use_dynamic_bsz": True, "data__train_batch_size": 65}
    assert list(judge_batch(config(**dynamic))) == []
    padded = {f"{ACTOR}__ppo_mini_batch_size": 48}
    assert [f.severity for f in judge_batch(config(**padded))] == ["warning"]
    assert [f.severity for f in judge_batch(config(**padded, trainer__use_v1=False))] == ["error"]


def target(*overrides: str, gpus: int | None = None) -> Target:
    """Return a command under check."""
    argv = ["python", "-m", "verl.trainer.main_ppo", *overrides]
    return Target(tuple(argv), recognise(argv), Path(), LocalRunner("python"), {"A": "1"}, {"A": "1"}, gpus=gpus)


RELEASE = {"program": "verl.trainer.main_ppo", "trainer_version": "0.9.1"}


def judge(changed: dict[str, Any], *, gpus: int | None = None, **variables: str) -> list[Finding]:
    """Judge a config in an environment of GPUs."""
    facts = {"config": config(**changed), "variables": variables, "verdict": None, "gpus": 8, **RELEASE}
    return config_rules.judge(target(gpus=gpus), facts)


def test_gpus_that_are_not_there() -> None:
    """The cluster's GPUs count, else those of this machine; with the numbers, and the words that verl would say."""
    (found,) = judge({}, gpus=2)
    assert found.what == "the command asks for 8 GPUs, 2 are there"
    assert "Total available GPUs 2 is less than total desired GPUs 8" in found.why
    assert judge({}, gpus=None) == []
    for nodes, gpus, fix in (
        (2, 8, "n_gpus_per_node=4 trainer.nnodes=2"),
        (4, 2, "n_gpus_per_node=1 trainer.nnodes=2"),
    ):
        (found,) = (one for one in judge({"trainer__nnodes": nodes}, gpus=gpus) if one.code == "command.gpus")
        assert fix in found.fix
    (found,) = judge({"rollout": {"n_gpus_per_node": 4, "nnodes": 1}}, gpus=8)
    assert found.what == "the command asks for 12 GPUs, 8 are there"
    (found,) = judge({}, gpus=0)
    assert found.fix == "`raydebug up --gpus N`"


def test_a_probe_that_refuses_the_command() -> None:
    """A mistake in the command that a probe finds is shown in its own words."""
    refusal = {"message": "no setting 'a.b'", "cause": "the nearest is a.c", "fix": "write a.c"}
    with pytest.raises(NoAnswer) as caught:
        facts_of({"refused": refusal}, "data", 10)
    assert caught.value.finding == Finding(
        "check.refused", "error", "no setting 'a.b'", "the nearest is a.c", "write a.c"
    )


def test_a_probe_without_a_package() -> None:
    """A package that a check needs is named, with where to check instead; it is no fault to report."""
    failure = {"type": "ModuleNotFoundError", "message": "No module named 'hydra'", "where": "a.py:27"}
    with pytest.raises(NoAnswer) as caught:
        facts_of({"failed": failure}, "data", 10)
    assert caught.value.finding == Finding(
        "env.package-missing",
        "error",
        "the check 'data' needs hydra, which the cluster's Python lacks",
        "a.py:27 imports it",
        f"check in the environment of the training, or install a flavour: {install(flavour='cpu')}",
    )


def test_a_run_that_was_refused() -> None:
    """What `raydebug run` refuses or stops is a finding in its own three lines, not the last line of a log."""
    log = "ending cluster 'x'\nerror: the job asks for 8 GPU\ncause: it has 2 GPU\nfix: ask for less\n"
    (found,) = train.judge(2, log, target())
    assert (found.code, found.why, found.fix) == ("train.not-run", "it has 2 GPU", "ask for less")
    assert found.what == "the training could not run: the job asks for 8 GPU"
    (found,) = train.judge(1, log + "ValueError: no\n", target())
    assert found.code == "train.failed"
    (found,) = train.judge(1, "ValueError: no\n", target("+trainer.wandb_api_key=abcdef123456"))
    assert "abcdef" not in found.fix


def test_a_run_that_is_explained() -> None:
    """A diagnosis of the run replaces the last line of the log: its cause, the line that shows it, and its fix."""
    diagnosis = {"code": "cuda-oom", "what": "no memory", "why": "too much", "fix": "less", "evidence": "rank 1:7: OOM"}
    (found,) = train.judge(
        1, "ValueError: no\n", target(), Run(findings=[{"code": "run.hangs", "what": "x"}, diagnosis])
    )
    assert (found.code, found.what) == ("train.failed", "the training fails after 0 steps: no memory (cuda-oom)")
    assert (found.why, found.fix) == ("too much; rank 1:7: OOM", "less")


def test_wandb_without_a_key() -> None:
    """wandb without a key is a warning, with a key or offline it is none."""
    with_wandb = {"trainer__logger": ["console", "wandb"]}
    assert [finding.code for finding in judge(with_wandb)] == ["command.logger"]
    assert judge(with_wandb, WANDB_API_KEY="(set)") == []
    assert judge(with_wandb, WANDB_MODE="offline") == []


def estimated(changed: dict[str, Any], sizes: dict[str, int], parameters: int, *, stateful: bool) -> Estimate:
    """Estimate the memory of a command."""
    checks, of = target().rules, target().config(config(**changed))
    return estimate(of, checks.trained_bytes(of, parameters), sizes, parameters, stateful=stateful)


def test_memory_of_a_model_of_seven_billion() -> None:
    """7 B parameters in fp32 with AdamW take 16 bytes each, split over the ranks; offloaded, the gradients stay."""
    sizes = {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584,
             "max_position_embeddings": 32768}  # fmt: skip
    count = 7_600_000_000
    plain = estimated({}, sizes, count, stateful=False)
    assert plain.training == count * 16 // 8
    assert plain.rollout_weights == count * 2 // 2
    assert plain.cache_per_token == 2 * 28 * 2 * 128 * 2
    assert plain.one_sequence == plain.cache_per_token * 32768
    offloaded = {f"{ACTOR}__fsdp_config": {"param_offload": True, "optimizer_offload": True}}
    assert estimated(offloaded, sizes, count, stateful=False).training == count * 4 // 8
    assert estimated({}, sizes, count, stateful=True).one_sequence == 0
    on_cpu = {f"{ACTOR}__strategy": "fsdp2", f"{ACTOR}__fsdp_config": {"offload_policy": True}}
    assert estimated(on_cpu, sizes, count, stateful=False).training == 0
    assert estimated({**on_cpu, f"{ACTOR}__strategy": "fsdp"}, sizes, count, stateful=False) == plain
    adapter = {"actor_rollout_ref__model": {"lora_rank": 32}}
    assert estimated(adapter, sizes, count, stateful=False).training == count * 4 // 8
    assert estimated({**adapter, **offloaded}, sizes, count, stateful=False).training == 0
    with_critic = {**adapter, "critic__enable": True}
    assert estimated(with_critic, sizes, count, stateful=False).training == count * 4 // 8 + count * 16 // 8


SIZES = {"num_hidden_layers": 28, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "max_position_embeddings": 2_000_000}  # fmt: skip


def fit(changed: dict[str, Any], parameters: int, gpu: int, **known: Any) -> list[Finding]:
    """Return what is said of a model of so many parameters on GPUs of so many bytes."""
    facts = {"config": config(**changed), "sizes": SIZES, "has_flash_attention": True, "layer_types": [],
             "trainer_version": "0.9.1", "memory_bytes": 0, "gpu_bytes": gpu,
             "shards": {"parameters": parameters, "shards": []}, **known}  # fmt: skip
    return list(judge_fit(target(), facts, {}))


GPU = {"70 GiB for two ranks of 8 B": (
           {"trainer__n_gpus_per_node": 2, f"{ROLLOUT}__tensor_model_parallel_size": 1}, 8_000_000_000, 48 * GIB,
           "model.memory", "each rank needs about"),
       "weights larger than vLLM's share": (
           {f"{ROLLOUT}__gpu_memory_utilization": 0.2}, 32_000_000_000, 80 * GIB, "model.memory", "its weights alone"),
       "a context that the cache does not hold": (
           {f"{ROLLOUT}__max_model_len": 1_000_000, f"{ROLLOUT}__tensor_model_parallel_size": 1}, 7_600_000_000,
           80 * GIB,
           "model.kv-cache", "one sequence of 1000000 tokens takes")}  # fmt: skip


@pytest.mark.parametrize(("changed", "parameters", "gpu", "code", "says"), GPU.values(), ids=GPU)
def test_what_does_not_fit_a_gpu(changed: dict[str, Any], parameters: int, gpu: int, code: str, says: str) -> None:
    """What cannot fit is an error with both sizes."""
    found = [finding for finding in fit(changed, parameters, gpu) if finding.severity == "error"]
    assert [finding.code for finding in found] == [code]
    assert says in found[0].what


def test_layers_with_a_window() -> None:
    """The cache of a model with layers whose cache ends at a window is not judged as one that grows in all layers."""
    changed, parameters, gpu, _, _ = GPU["a context that the cache does not hold"]
    for kind, codes in (("full_attention", ["model.kv-cache"]), ("sliding_attention", []), ("chunked_attention", [])):
        found = fit(changed, parameters, gpu, layer_types=[kind])
        assert [finding.code for finding in found if finding.severity == "error"] == codes


def test_an_actor_of_megatron_is_not_judged_as_one_of_fsdp() -> None:
    """It shards by settings of its own and brings its own attention; what vLLM needs is judged all the same."""
    few = {f"{ROLLOUT}__gpu_memory_utilization": 0.1}
    for strategy, codes in (("fsdp2", ["model.attention", "model.memory"]), ("megatron", ["model.memory"])):
        changed = {**few, f"{ACTOR}__strategy": strategy}
        found = fit(changed, 70_000_000_000, 80 * GIB, sizes={}, has_flash_attention=False)
        assert [finding.code for finding in found] == codes
        assert ("each rank needs about" in found[-1].what) == (strategy == "fsdp2")


def test_the_training_of_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script is checked by the one training that it ends in, with the variables that it exports; two are refused."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    line = "python -m verl.trainer.main_ppo data.train_batch_size=${BATCH} $@\n"
    (tmp_path / "run.sh").write_text(f"export VLLM_LOGGING_LEVEL=DEBUG\nBATCH=8\n{line}")
    found = find_target(["bash", "run.sh", "trainer.nnodes=1"], tmp_path, "default", None)
    assert found.arguments == ["data.train_batch_size=8", "trainer.nnodes=1"]
    assert found.environ is not None
    assert found.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert Fixed(found).as_command().startswith("env VLLM_LOGGING_LEVEL=DEBUG python -m verl.trainer.main_ppo ")
    (tmp_path / "run.sh").write_text(line + line)
    with pytest.raises(RaydebugError, match="runs 2 trainings"):
        find_target(["bash", "run.sh"], tmp_path, "default", None)


def test_a_command_is_recognised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is a training itself or in a script, a check looks for the trainer's program in it once."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    calls: list[object] = []
    monkeypatch.setattr(trainings, "recognise", lambda argv, **_: calls.append(argv) or recognise(argv))
    words = ["python", "-m", "verl.trainer.main_ppo", "a=1"]
    (tmp_path / "run.sh").write_text(f"set -x\n{shlex.join(words)}\n")
    for command in (words, ["bash", "run.sh"]):
        assert find_target(command, tmp_path, "default", None).arguments == ["a=1"]
    assert calls == [words, words]


def test_the_environment_of_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `env` in front of a command sets and removes is so for the check, and in the command with fixes."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    words = ["env", "-uVLLM_LOGGING_LEVEL", "WANDB_MODE=offline", "python", "-m", "verl.trainer.main_ppo"]
    found = find_target(words, tmp_path, "default", None)
    assert found.environ is not None
    for environ in (found.environ, found.caller):
        assert environ["WANDB_MODE"] == "offline"
        assert "VLLM_LOGGING_LEVEL" not in environ
    assert Fixed(found).as_command() == shlex.join(words)
    (tmp_path / "run.sh").write_text("python -m verl.trainer.main_ppo x=$A\n")
    found = find_target(["env", "A=1", "bash", "run.sh"], tmp_path, "default", None)
    assert (found.arguments, found.changed) == (["x=1"], {"A": "1"})


def test_fixes_are_applied() -> None:
    """A fix replaces every override of its key, unsets variables on both sides, and is written as a shell line."""
    before = Fixed(target("data.train_batch_size=3", "+x.y=1", "data.train_batch_size=5"))
    findings = [
        Finding("command.batch", "error", "w", "", "", overrides={"data.train_batch_size": "8", "x.y": None}),
        Finding("env.slow-flag", "warning", "w", "", "", variables={"A": None, "B": "2"}),
    ]
    after = apply_fixes(before, findings)
    assert after.as_command() == "env -uA B=2 python -m verl.trainer.main_ppo data.train_batch_size=8"
    assert after.target.environ == {"B": "2"}
    assert after.changes == (
        "data.train_batch_size: 5 -> 8", "x.y: 1 -> (taken out)", "A: 1 -> (not set)", "B: (not set) -> 2",
    )  # fmt: skip
    assert apply_fixes(before, []) == before
    assert apply_fixes(after, findings[:1]) == after


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["a pipe", "a device", "too long", "a folder"])
def test_a_model_whose_config_is_no_text(kind: str, tmp_path: Path) -> None:
    """A pipe, a device or a text without end in a model's folder is named, and not read."""
    (tmp_path / "tokenizer.json").symlink_to(tmp_path / "nowhere")  # a link to nothing is for transformers to name
    config = tmp_path / "config.json"
    if kind == "a pipe":
        os.mkfifo(config)
    elif kind == "a device":
        config.symlink_to("/dev/zero")
    elif kind == "a folder":
        config.mkdir()
    else:
        config.touch()
        os.truncate(config, 2**31)
    with pytest.raises(RaydebugError, match=r"config\.json cannot be read"):
        require_plain_files(tmp_path)
